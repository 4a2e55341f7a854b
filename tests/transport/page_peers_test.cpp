// Page servers that die or hang, readers that keep to no protocol, and ranges that several servers
// have.

#include "base/limits.hpp"
#include "base/units.hpp"
#include "tests/transport/page_channel_support.hpp"
#include "transport/page_messages.hpp"
#include "transport/ucx.hpp"

#include <netdb.h>

#include <algorithm>
#include <future>

namespace hicache::test {
namespace {

using namespace literals;
using namespace std::chrono_literals;

TEST(PageServerProcessTest, AKilledServerFailsWhatIsMissingLongBeforeTheDeadline) {
  auto child = serve(32_MiB);
  const auto address = child.receive();
  auto client = make_client();
  auto rounds = std::promise<void>{};
  auto reader = std::async(std::launch::async, [&] {
    for (auto round = 0;; ++round) {
      auto want = wanted{};
      for (size_t i = 0; i < 32; ++i)
        want.add(i * 1_MiB, 1_MiB);
      if (round == 2)
        rounds.set_value();
      auto answers = read_from(*client, address, want, in(60s));
      if (std::any_of(answers.begin(), answers.end(), [](const auto& x) { return !x; }))
        return answers;
    }
  });
  rounds.get_future().wait();
  const auto killed = std::chrono::steady_clock::now();
  child.kill();
  for (const auto& answer : reader.get())
    if (!answer) {
      EXPECT_EQ(answer.error().code, ec::peer_unreachable) << to_string(answer.error());
    }
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 30s);
}

TEST(PageServerProcessTest, AHangingServerCostsNoMoreThanTheDeadlineAndNothingIsWrittenLater) {
  auto child = serve(32_MiB);
  const auto address = child.receive();
  const auto memory = pattern(32_MiB);
  auto client = make_client();
  auto first = wanted{};
  first.add(0, 1_MiB);
  expect_all(read_from(*client, address, first, in(20s)), ec::none);
  child.stop();
  auto late = wanted{};
  late.add(1_MiB, 20_MiB);
  const auto began = std::chrono::steady_clock::now();
  expect_all(read_from(*client, address, late, in(200ms)), ec::deadline_exceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  expect_all(read_from(*client, address, late, in(-1s)), ec::deadline_exceeded);
  child.resume();
  const auto before = late.bytes();
  auto again = wanted{};
  again.add(5_MiB, 20_MiB);
  expect_all(read_from(*client, address, again, in(30s)), ec::none);
  again.expect_equal(memory);
  EXPECT_TRUE(late.bytes() == before) << "an abandoned transfer wrote to its target";
}

TEST_F(PageChannelTest, NothingIsWrittenAfterAReadThatEndsInTheMiddle) {
  auto first = wanted{};
  first.add(0, 1_MiB);
  expect_readable(first);
  // However fast this machine is, some of these deadlines come while bytes are received.
  auto cut = 0;
  for (auto allowed = 100us; allowed < 2s && cut < 20; allowed += allowed / 8) {
    auto part = wanted{};
    part.add(3_MiB, 32_MiB);
    const auto answers = read_from(*client, server->address(), part, in(allowed));
    auto& bytes = part.targets[0].bytes;
    const auto was_cut = bytes.front() != std::byte{0xee} && !answers[0];
    cut += was_cut ? 1 : 0;
    std::ranges::fill(bytes, std::byte{0xdd});
    auto again = wanted{};
    again.add(5_MiB, 4_MiB);
    expect_readable(again);
    ASSERT_EQ(std::ranges::count(bytes, std::byte{0xdd}), bytes.size())
      << "after " << allowed.count() << " us";
  }
  EXPECT_GT(cut, 0);
}

// -- readers that do not keep to the protocol ---------------------------------

/// A reader that says what the test wants.
class rude_reader {
public:
  static interface_names here() {
    return interfaces_with(*resolve("127.0.0.1", "0", AI_NUMERICHOST));
  }

  explicit rude_reader(const std::string& address)
    : context_(*make_ucx_context(here())), worker_(*make_ucx_worker(context_)) {
    EXPECT_TRUE(receive_messages(worker_, page_reply_message, count_reply, &replies_));
    const auto parts = split_address(address);
    EXPECT_TRUE(connect(worker_, *resolve(parts->first, parts->second, AI_NUMERICHOST), link_));
  }

  /// Sends and waits until the server closed the connection. @returns false if it answered instead
  bool is_expelled_after(const page_request_head& head, size_t header_length,
                         const std::vector<page_span>& spans, unsigned flags, int times = 1) {
    auto params = ucp_request_param_t{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY | flags;
    for (auto i = 0; i < times; ++i) {
      auto* request
        = ucp_am_send_nbx(link_.endpoint.get(), page_request_message, &head, header_length,
                          spans.data(), spans.size() * sizeof(page_span), &params);
      if (UCS_PTR_IS_PTR(request))
        sent_.push_back(request);
    }
    const auto deadline = in(20s);
    while (link_.failure == UCS_OK && replies_ < times
           && std::chrono::steady_clock::now() < deadline)
      if (ucp_worker_progress(worker_.get()) == 0)
        wait_for_events(worker_, -1, 100ms);
    for (auto* request : sent_)
      ucp_request_free(request);
    sent_.clear();
    return link_.failure != UCS_OK;
  }

private:
  static ucs_status_t count_reply(void* count, const void*, size_t, void*, size_t,
                                  const ucp_am_recv_param_t*) {
    ++*static_cast<int*>(count);
    return UCS_OK;
  }

  int replies_ = 0;
  ucx_context context_;
  ucx_worker worker_;
  ucx_connection link_;
  std::vector<void*> sent_;
};

TEST_F(PageChannelTest, MalformedRequestsCloseTheConnectionAndNothingElse) {
  const auto whole = sizeof(page_request_head);
  const auto one = std::vector<page_span>{{0, 0, 10}};
  const auto eager = UCP_AM_SEND_FLAG_EAGER;
  const auto expelled = [&](const page_request_head& head, size_t length,
                            const std::vector<page_span>& spans, unsigned flags) {
    return rude_reader{server->address()}.is_expelled_after(head, length, spans, flags);
  };
  EXPECT_FALSE(expelled({page_protocol, 1, 7}, whole, one, eager))
    << "a proper request is answered";
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, whole - 1, one, eager));
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, 0, one, eager));
  EXPECT_TRUE(expelled({page_protocol + 1, 1, 7}, whole, one, eager));
  EXPECT_TRUE(expelled({page_protocol, 2, 7}, whole, one, eager)) << "more spans than came";
  EXPECT_TRUE(expelled({page_protocol, 0, 7}, whole, {}, eager));
  EXPECT_TRUE(expelled({page_protocol, ~uint32_t{0}, 7}, whole, one, eager));
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, whole, {{0, 0, limits::transfer_bytes + 1}}, eager));
  EXPECT_TRUE(expelled({page_protocol, 2, 7}, whole, {{0, 0, ~uint32_t{0}}, {0, 0, 2}}, eager))
    << "lengths that overflow";
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, whole, one, UCP_AM_SEND_FLAG_RNDV));
  auto want = wanted{};
  want.add(100, 3_MiB);
  expect_readable(want);
}

TEST_F(PageChannelTest, AReaderThatAsksForTooMuchAtATimeIsClosed) {
  const auto spans = std::vector<page_span>{{0, 0, limits::transfer_bytes}};
  EXPECT_TRUE(rude_reader{server->address()}.is_expelled_after(
    {page_protocol, 1, 7}, sizeof(page_request_head), spans, UCP_AM_SEND_FLAG_EAGER, 200));
  auto want = wanted{};
  want.add(100, 3_MiB);
  expect_readable(want);
}

// -- several places for the same bytes ----------------------------------------

TEST(PageChannelProcessTest, ReadsFromSeveralServersAtATimeOfWhichOneHangs) {
  auto near = serve(32_MiB);
  auto other = serve(32_MiB);
  auto hung = serve(32_MiB);
  const auto near_address = near.receive();
  const auto other_address = other.receive();
  const auto hung_address = hung.receive();
  const auto memory = pattern(32_MiB);
  const auto client = make_client();
  auto first = wanted{};
  first.add(0, 10);
  expect_all(read_from(*client, hung_address, first, in(20s)), ec::none);
  hung.stop();
  auto want = wanted{};
  want.add(1, 100);
  want.add(5, 3000);
  want.add(70, 12_MiB);
  auto reads = want.from({hung_address, near_address, other_address});
  for (auto i = size_t{0}; i < 3; ++i)
    reads.ranges[i].places = reads.ranges[i].places.subspan(i, 1);
  const auto answers = client->read(reads, in(60s));
  ASSERT_EQ(answers.size(), 3u);
  expect_all({answers[0]}, ec::peer_unreachable);
  expect_all({answers[1], answers[2]}, ec::none);
  want.targets.pop_front();
  want.expect_equal(memory);
  // Nobody waits for it once more.
  const auto begin = std::chrono::steady_clock::now();
  expect_all(read_from(*client, hung_address, first, in(60s)), ec::peer_unreachable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, limits::read_stall);
  hung.resume();
}

TEST(PageChannelProcessTest, ALateServerIsOvertakenAndThenAskedLast) {
  auto late = serve(32_MiB);
  auto other = serve(32_MiB);
  const auto servers = std::vector<std::string>{late.receive(), other.receive()};
  const auto memory = pattern(32_MiB);
  const auto client = make_client();
  auto first = wanted{};
  first.add(0, 10);
  const auto served = client->read(first.from(servers), in(20s));
  expect_all(served, ec::none);
  EXPECT_EQ(served.front()->place, 0u);
  late.stop();
  auto want = wanted{};
  want.add(3, 12_MiB);
  want.add(20_MiB, 1000);
  for (const auto is_late : {true, false}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto answers = client->read(want.from(servers), in(60s));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, limits::read_stall);
    expect_all(answers, ec::none);
    for (const auto& answer : answers)
      EXPECT_EQ(answer->place, 1u);
    want.expect_equal(memory);
    if (is_late)
      late.resume();
  }
  // What it sends now is for nobody, but it still serves.
  const auto before = want.bytes();
  expect_all(read_from(*client, servers.front(), first, in(30s)), ec::none);
  EXPECT_TRUE(want.bytes() == before);
}

TEST_F(PageChannelTest, TheNextPlaceServesWhatTheFirstCannot) {
  const auto little = pattern(1_MiB);
  auto small = start_server(little);
  ASSERT_TRUE(small);
  auto gone = start_server(little);
  ASSERT_TRUE(gone);
  const auto nowhere = (*gone)->address();
  gone->reset();
  auto want = wanted{};
  want.add(2_MiB, 3_MiB);
  const auto answers
    = client->read(want.from({nowhere, (*small)->address(), server->address()}), in(30s));
  expect_all(answers, ec::none);
  EXPECT_EQ(answers.front()->place, 2u);
  want.expect_equal(memory);
}

TEST_F(PageChannelTest, WhatManyWantIsSentAFewTimesToReadersThatOfferIt) {
  auto want = wanted{};
  want.insists = false;
  want.add(4096, 100);
  auto lender = page_client::create(true);
  ASSERT_TRUE(lender);
  for (auto i = 0u; i < limits::demand_serves; ++i) {
    const auto answers = read_from(**lender, server->address(), want, in(30s));
    expect_all(answers, ec::none);
    EXPECT_EQ(answers.front()->in_demand, i > 0);
  }
  want.add(1, 3);
  const auto answers = read_from(*client, server->address(), want, in(30s));
  expect_all({answers[0]}, ec::limit_reached);
  expect_all({answers[1]}, ec::none);
  want.insists = true;
  expect_readable(want);
}

} // namespace
} // namespace hicache::test
