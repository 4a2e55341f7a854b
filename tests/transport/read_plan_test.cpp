// Who is asked for what, and whose bytes count: with the servers' memory at hand, no connections.

#include "base/limits.hpp"
#include "transport/read_plan.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>

namespace hicache {
namespace {

/// Bytes that tell whose they are and where.
std::byte byte_at(size_t server, uint64_t offset) {
  return static_cast<std::byte>(server * 101 + offset * 7 + (offset >> 9));
}

class ReadPlanTest : public testing::Test {
protected:
  /// A range of `length` bytes at the same offset of these servers.
  void want(uint64_t offset, size_t length, const std::vector<size_t>& servers) {
    auto& target = bytes_.emplace_back(length, std::byte{0xee});
    parts_.push_back({std::span{target}});
    auto& places = places_.emplace_back();
    for (const auto server : servers)
      places.push_back({server, offset + 7, offset});
    ranges_.push_back({places, parts_.back()});
  }

  read_plan plan(size_t servers = 3, bool exports = false) {
    return {ranges_, std::vector(servers, server_standing::good), exports};
  }

  /// What a server says: header and data.
  struct raw_reply {
    std::vector<std::byte> header;
    std::vector<std::byte> data;
  };

  /// What the server answers. Heads tell the server and the place.
  static raw_reply reply(size_t server, const planned_message& message,
                         span_state state = span_state::sent) {
    auto made = raw_reply{std::vector<std::byte>(sizeof(page_reply_head)), {}};
    for (const auto& span : message.spans) {
      auto answer = span_answer{state, 0, {}};
      answer.head.fill(byte_at(server, span.head));
      const auto bytes = std::as_bytes(std::span{&answer, 1});
      auto& to = message.spans.size() == 1 ? made.header : made.data;
      to.insert(to.end(), bytes.begin(), bytes.end());
    }
    for (const auto& span : message.spans)
      for (auto i = uint64_t{0}; has_bytes(state) && i < span.length; ++i)
        made.data.push_back(byte_at(server, span.offset + i));
    return made;
  }

  static result<void> deliver(read_plan& plan, size_t server, const planned_message& message,
                              span_state state = span_state::sent) {
    const auto [header, data] = reply(server, message, state);
    return plan.deliver(message, header, data);
  }

  static void answer(read_plan& plan, size_t server) {
    ASSERT_TRUE(deliver(plan, server, plan.next(server)));
  }

  /// True if what is said of the range is true of that place.
  bool fits(size_t range, const range_answer& answer) const {
    const auto& [server, head, offset, claim] = ranges_[range].places[answer.place];
    auto expected = range_head{};
    expected.fill(byte_at(server, head));
    return answer.head == expected && answer.checksum == page_checksum(parts_[range])
           && holds(range, answer.place);
  }

  /// True if the range holds the bytes of that place, and none of another.
  bool holds(size_t range, size_t place) const {
    const auto& [server, head, offset, claim] = ranges_[range].places[place];
    for (auto i = size_t{0}; i < bytes_[range].size(); ++i)
      if (bytes_[range][i] != byte_at(server, offset + i))
        return false;
    return true;
  }

  const error failure_{ec::peer_unreachable, "gone"};
  std::deque<std::vector<std::byte>> bytes_;
  std::deque<std::vector<std::span<std::byte>>> parts_;
  std::deque<std::vector<range_place>> places_;
  std::vector<remote_range> ranges_;
};

TEST_F(ReadPlanTest, AsksTheFirstPlace) {
  want(64, 1000, {1, 0});
  auto reads = plan();
  EXPECT_FALSE(reads.has_next(0));
  ASSERT_TRUE(reads.has_next(1));
  const auto message = reads.next(1);
  EXPECT_EQ(message.spans, (std::vector<page_span>{{71, 64, 1000, 0}}));
  ASSERT_TRUE(deliver(reads, 1, message));
  EXPECT_TRUE(reads.is_over());
  const auto answers = reads.finish(failure_);
  ASSERT_TRUE(answers.at(0));
  EXPECT_EQ(answers[0]->place, 0u);
  EXPECT_FALSE(answers[0]->in_demand);
  EXPECT_TRUE(fits(0, *answers[0]));
}

TEST_F(ReadPlanTest, TellsServersWhatTheReaderWantsAndOffers) {
  want(0, 10, {0});
  ranges_[0].insists = true;
  auto reads = plan(1, true);
  EXPECT_EQ(reads.next(0).spans[0].flags, page_span::insists | page_span::exports);
}

TEST_F(ReadPlanTest, ReportsWhatIsInDemand) {
  want(0, 10, {0});
  auto reads = plan();
  const auto message = reads.next(0);
  ASSERT_TRUE(deliver(reads, 0, message, span_state::in_demand));
  EXPECT_TRUE(reads.finish(failure_).at(0)->in_demand);
}

TEST_F(ReadPlanTest, MessagesHoldNoMoreThanAServerTakes) {
  for (auto i = size_t{0}; i < limits::transfer_ranges + 1; ++i)
    want(i, 1, {0});
  want(9, 2 * limits::transfer_bytes, {0});
  auto reads = plan(1);
  auto messages = 0;
  while (reads.has_next(0)) {
    const auto message = reads.next(0);
    auto total = size_t{0};
    for (const auto& span : message.spans)
      total += span.length;
    EXPECT_LE(total, limits::transfer_bytes);
    EXPECT_LE(message.spans.size(), limits::transfer_ranges);
    ASSERT_TRUE(deliver(reads, 0, message));
    ++messages;
  }
  EXPECT_EQ(messages, 4);
  EXPECT_TRUE(reads.is_over());
  for (auto i = size_t{0}; i < ranges_.size(); ++i)
    ASSERT_TRUE(holds(i, 0)) << i;
}

TEST_F(ReadPlanTest, LargePiecesGoAlone) {
  want(0, 100, {0});
  want(500, limits::transfer_bytes / 2, {0});
  want(900, 100, {0});
  want(950, 2 * limits::transfer_bytes + 100, {0});
  want(970, 100, {0});
  auto reads = plan(1);
  auto lengths = std::vector<std::vector<size_t>>{};
  while (reads.has_next(0)) {
    auto& of_message = lengths.emplace_back();
    for (const auto& span : reads.next(0).spans)
      of_message.push_back(span.length);
  }
  constexpr auto most = limits::transfer_bytes;
  EXPECT_EQ(lengths, (std::vector<std::vector<size_t>>{
                       {100}, {most / 2}, {100}, {most}, {most}, {100, 100}}));
}

TEST_F(ReadPlanTest, PiecesMayArriveInAnyOrder) {
  want(0, 2 * limits::transfer_bytes + 100, {0});
  auto reads = plan(1);
  const auto first = reads.next(0);
  const auto second = reads.next(0);
  const auto third = reads.next(0);
  for (const auto& message : {second, first, third})
    ASSERT_TRUE(deliver(reads, 0, message));
  const auto answers = reads.finish(failure_);
  ASSERT_TRUE(answers.at(0));
  EXPECT_TRUE(fits(0, *answers[0]));
}

TEST_F(ReadPlanTest, BytesMayBeReceivedWhereTheyAreWanted) {
  want(0, 2 * limits::transfer_bytes + limits::transfer_bytes / 2, {0});
  auto reads = plan(1);
  const auto first = reads.next(0);
  const auto second = reads.next(0);
  const auto third = reads.next(0);
  for (const auto& message : {first, third, second}) {
    const auto target = reads.target_of(message);
    EXPECT_EQ(target.data(), bytes_[0].data() + message.spans[0].offset);
    const auto [header, data] = reply(0, message);
    ASSERT_EQ(target.size(), data.size());
    std::ranges::copy(data, target.begin());
    ASSERT_TRUE(reads.deliver(message, header, target));
  }
  const auto answers = reads.finish(failure_);
  ASSERT_TRUE(answers.at(0));
  EXPECT_TRUE(fits(0, *answers[0]));
}

TEST_F(ReadPlanTest, BytesAreReceivedElsewhereWhereOthersMayBringThemOrTargetsHaveGaps) {
  constexpr auto large = limits::transfer_bytes / 2;
  want(0, large, {0, 1});
  want(10, large, {0});
  parts_.back() = {std::span{bytes_.back()}.first(100), std::span{bytes_.back()}.subspan(100)};
  ranges_.back().targets = parts_.back();
  want(20, 100, {0});
  want(30, 100, {0});
  auto reads = plan();
  while (reads.has_next(0)) {
    const auto message = reads.next(0);
    EXPECT_TRUE(reads.target_of(message).empty());
    ASSERT_TRUE(deliver(reads, 0, message));
  }
  for (auto i = size_t{0}; i < ranges_.size(); ++i)
    EXPECT_TRUE(holds(i, 0)) << i;
}

TEST_F(ReadPlanTest, NothingIsReceivedWhereNothingIsWantedAnyMore) {
  want(0, 2 * limits::transfer_bytes, {0});
  auto reads = plan();
  const auto first = reads.next(0);
  const auto second = reads.next(0);
  reads.fail(first, failure_);
  EXPECT_TRUE(reads.target_of(second).empty());
}

TEST_F(ReadPlanTest, TheNextPlaceFollowsAFailedOne) {
  want(0, 10, {0, 1, 2});
  auto reads = plan();
  reads.fail(reads.next(0), failure_);
  EXPECT_FALSE(reads.has_next(2)) << "one at a time";
  reads.fail_server(1, failure_);
  answer(reads, 2);
  EXPECT_EQ(reads.finish(failure_).at(0)->place, 2u);
}

TEST_F(ReadPlanTest, TheNextPlaceFollowsARefusal) {
  want(0, 10, {0, 1});
  want(50, 10, {0});
  auto reads = plan();
  const auto message = reads.next(0);
  ASSERT_TRUE(deliver(reads, 0, message, span_state::refused));
  answer(reads, 1);
  ASSERT_TRUE(reads.is_over());
  const auto answers = reads.finish(failure_);
  EXPECT_EQ(answers.at(0)->place, 1u);
  EXPECT_EQ(answers.at(1).error().code, ec::limit_reached);
}

TEST_F(ReadPlanTest, APlaceThatHoldsAnotherPageEndsTheRange) {
  want(0, 10, {0, 1});
  want(50, 10, {0});
  auto reads = plan();
  ASSERT_TRUE(deliver(reads, 0, reads.next(0), span_state::gone));
  EXPECT_FALSE(reads.has_next(1)) << "the reader asks again, when it has told the owner";
  ASSERT_TRUE(reads.is_over());
  for (const auto& answer : reads.finish(failure_)) {
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->is_gone);
    EXPECT_EQ(answer->place, 0u);
    EXPECT_EQ(answer->head, range_head{});
  }
}

TEST_F(ReadPlanTest, FailsWithTheReasonOfTheLastPlace) {
  want(0, 10, {0, 1});
  auto reads = plan();
  reads.fail(reads.next(0), failure_);
  reads.fail(reads.next(1), {ec::invalid_argument, "outside"});
  ASSERT_TRUE(reads.is_over());
  EXPECT_EQ(reads.finish(failure_).at(0).error().code, ec::invalid_argument);
}

TEST_F(ReadPlanTest, ALateServerIsOvertaken) {
  want(0, 10, {0, 1});
  want(50, 10, {0});
  auto reads = plan();
  const auto late = reads.next(0);
  EXPECT_TRUE(reads.hedge(0));
  answer(reads, 1);
  EXPECT_TRUE(holds(0, 1));
  EXPECT_FALSE(reads.is_over());
  ASSERT_TRUE(deliver(reads, 0, late));
  EXPECT_TRUE(holds(0, 1)) << "nothing is written to a range that is there";
  EXPECT_TRUE(holds(1, 0));
  EXPECT_EQ(reads.finish(failure_).at(0)->place, 1u);
}

TEST_F(ReadPlanTest, AHedgeThatLosesChangesNothing) {
  want(0, 10, {0, 1});
  auto reads = plan();
  const auto first = reads.next(0);
  EXPECT_TRUE(reads.hedge(0));
  const auto second = reads.next(1);
  ASSERT_TRUE(deliver(reads, 0, first));
  ASSERT_TRUE(deliver(reads, 1, second));
  EXPECT_TRUE(holds(0, 0));
  EXPECT_EQ(reads.finish(failure_).at(0)->place, 0u);
}

TEST_F(ReadPlanTest, NobodyIsAskedTwice) {
  want(0, 10, {0, 1});
  auto reads = plan();
  static_cast<void>(reads.next(0));
  EXPECT_TRUE(reads.hedge(0));
  EXPECT_FALSE(reads.hedge(0));
  static_cast<void>(reads.next(1));
  EXPECT_FALSE(reads.hedge(1)) << "no other place";
  reads.fail_server(0, failure_);
  EXPECT_FALSE(reads.is_over());
  reads.fail_server(1, failure_);
  EXPECT_TRUE(reads.is_over());
}

TEST_F(ReadPlanTest, WhatIsNotSentYetIsNotAskedForOnceItIsThere) {
  want(0, 10, {0, 1});
  auto reads = plan();
  EXPECT_TRUE(reads.hedge(0));
  answer(reads, 1);
  EXPECT_FALSE(reads.has_next(0));
}

TEST_F(ReadPlanTest, StandingDecidesWhoIsAskedFirst) {
  want(0, 10, {0, 1, 2});
  want(50, 10, {0});
  auto reads = read_plan{
    ranges_, {server_standing::avoided, server_standing::late, server_standing::good}, false};
  EXPECT_FALSE(reads.has_next(0));
  EXPECT_FALSE(reads.has_next(1));
  reads.fail(reads.next(2), failure_);
  answer(reads, 1);
  ASSERT_TRUE(reads.is_over());
  const auto answers = reads.finish(failure_);
  EXPECT_EQ(answers.at(0)->place, 1u);
  EXPECT_EQ(answers.at(1).error().code, ec::peer_unreachable);
}

TEST_F(ReadPlanTest, WhatIsOpenEndsWithTheReasonGiven) {
  want(0, 10, {0, 1});
  want(0, 0, {0});
  auto reads = plan();
  const auto answers = reads.finish({ec::deadline_exceeded, "too long"});
  EXPECT_EQ(answers.at(0).error().code, ec::deadline_exceeded);
  EXPECT_TRUE(answers.at(1)) << "no bytes are there at once";
}

TEST_F(ReadPlanTest, AReplyThatDoesNotFitChangesNothing) {
  want(0, 10, {0});
  auto reads = plan();
  const auto message = reads.next(0);
  auto [header, data] = reply(0, message);
  data.pop_back();
  EXPECT_EQ(reads.deliver(message, header, data).error().code, ec::malformed_message);
  EXPECT_EQ(bytes_[0], std::vector(10, std::byte{0xee}));
}

/// Servers answer, refuse, fail and are late in every order: what a range says that it holds, it
/// holds, from one place only, and every range comes to an end.
TEST_F(ReadPlanTest, TheBytesOfARangeComeFromOnePlace) {
  for (auto seed = 1u; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    bytes_.clear();
    parts_.clear();
    places_.clear();
    ranges_.clear();
    auto random = std::mt19937{seed};
    constexpr auto servers = size_t{4};
    for (auto i = 0; i < 6; ++i) {
      auto order = std::vector<size_t>{0, 1, 2, 3};
      std::shuffle(order.begin(), order.end(), random);
      order.resize(1 + random() % servers);
      // One comes in two messages.
      want(random() % 1000, i == 3 ? limits::transfer_bytes + 50 : 20 + random() % 60, order);
    }
    auto reads = plan(servers);
    auto in_flight = std::vector<std::vector<planned_message>>(servers);
    auto gone = std::vector<bool>(servers);
    while (!reads.is_over()) {
      const auto server = random() % servers;
      auto& sent = in_flight[server];
      const auto what = random() % 10;
      if (what == 0) {
        reads.hedge(server);
      } else if (what == 1 && random() % 4 == 0) {
        reads.fail_server(server, failure_);
        sent.clear();
        gone[server] = true;
      } else if (!gone[server] && sent.size() < 2 && reads.has_next(server)) {
        sent.push_back(reads.next(server));
      } else if (!sent.empty()) {
        const auto at = sent.begin() + static_cast<ptrdiff_t>(random() % sent.size());
        const auto message = *at;
        sent.erase(at);
        if (what == 2)
          reads.fail(message, failure_);
        else
          ASSERT_TRUE(
            deliver(reads, server, message, what == 3 ? span_state::refused : span_state::sent));
      }
    }
    const auto answers = reads.finish(failure_);
    for (auto i = size_t{0}; i < answers.size(); ++i)
      if (answers[i]) {
        ASSERT_TRUE(fits(i, *answers[i])) << i;
      }
  }
}

} // namespace
} // namespace hicache
