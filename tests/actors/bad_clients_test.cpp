// Clients of a node that crash, hang, lie or ask too much. The node and its other clients go on.

#include "base/limits.hpp"
#include "tests/actors/node_fixture.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

class BadClientTest : public NodeTest {
protected:
  /// Stores one page after the other, each of which takes the place of an older one.
  void store_each(const caf::actor& from, uint64_t first, uint64_t last) {
    for (auto number = first; number <= last; ++number)
      store_as(from, {number});
  }

  std::span<std::byte> object_at(const page_place& place) {
    return std::span{memory_}.subspan(place.offset + slot_object_offset);
  }

  /// A client has read this page, found it damaged, and says so.
  void report(const caf::actor& from, uint64_t number) {
    EXPECT_TRUE(ask_as<page_totals>(from, atom::corrupt_v, key_batch{{key_of(number)}}));
  }

  static key_batch many_keys() {
    auto keys = key_batch{};
    for (auto number = uint64_t{1}; number <= 200; ++number)
      keys.keys.push_back(key_of(number));
    return keys;
  }
};

// -- crashes and hangs --------------------------------------------------------

TEST_F(BadClientTest, WhatAClientReservedAndNeverCommitsIsFreeOnceItDies) {
  start(4, {0, 1, 1, 1});
  const auto dead = client();
  reserve_as(dead, {1, 2, 3, 4});
  const auto other = client();
  EXPECT_EQ(code_of(ask_as<reserved_pages>(other, atom::reserve_v, pages({5}))), ec::limit_reached);
  stop(dead);
  EXPECT_EQ(store_as(other, {1, 2, 3, 4}).pages, 4u);
}

TEST_F(BadClientTest, AClientThatNeverReleasesKeepsNobodyFromWriting) {
  start(8, {0, 0.25, 0.5, 1});
  const auto writer = client(1);
  store_as(writer, {1, 2});
  const auto hanging = client(2);
  EXPECT_EQ(found(look_up_as(hanging, lookup({1, 2}))), (std::vector{true, true}));
  store_each(writer, 3, 30);
  EXPECT_EQ(locate(1).size(), 1u) << "it may still be read";
  EXPECT_EQ(found(look_up_as(hanging, lookup({30}))), std::vector{false}) << "its share is used up";
  EXPECT_EQ(found(look_up_as(writer, lookup({30}))), std::vector{true});
  advance_in_steps(301s, 301);
  EXPECT_EQ(status().expired_leases, 2u);
  store_each(writer, 31, 50);
  EXPECT_TRUE(locate(1).empty());
}

TEST_F(BadClientTest, AClientThatReadsAfterItsReleaseSeesThatThePageIsGone) {
  start(2, {0, 0.5, 1, 1});
  const auto writer = client();
  store_as(writer, {1});
  const auto reader = client();
  const auto held = look_up_as(reader, lookup({1}));
  ASSERT_TRUE(is_page(held.places[0], 1));
  ASSERT_TRUE(ask_as<page_totals>(reader, atom::release_v, client_ticket{held.lease}));
  EXPECT_EQ(code_of(ask_as<page_totals>(reader, atom::release_v, client_ticket{held.lease})),
            ec::unknown_id);
  store_each(writer, 2, 5);
  EXPECT_FALSE(is_page(held.places[0], 1));
}

// -- lies ---------------------------------------------------------------------

TEST_F(BadClientTest, ImpossibleLengthsAreRefused) {
  start(4);
  const auto liar = client();
  for (const auto length : {uint32_t{0}, static_cast<uint32_t>(limits::page_bytes + 1), ~0u}) {
    auto wanted = pages({1});
    wanted.pages[0].length = length;
    EXPECT_EQ(code_of(ask_as<reserved_pages>(liar, atom::reserve_v, wanted)), ec::invalid_argument);
  }
  EXPECT_EQ(status().used_bytes, 0u);
}

TEST_F(BadClientTest, WhoWritesMoreThanItReservedDamagesPagesThatReadersFind) {
  start(8);
  const auto liar = client();
  const auto honest = client();
  auto places = std::array{reserve_as(liar, {1}).places[0], reserve_as(honest, {2}).places[0]};
  const auto checksums = std::array{write(places[0], 1), write(places[1], 2)};
  ASSERT_TRUE(
    ask_as<page_totals>(honest, atom::commit_v, complete_pages{2, {{key_of(2), checksums[1]}}}));
  ASSERT_LT(places[0].offset, places[1].offset);
  ASSERT_TRUE(is_page(places[1], 2));
  std::ranges::fill(object_at(places[0]).first(3 * slot_bytes), std::byte{9});
  EXPECT_FALSE(is_page(places[1], 2));
  report(honest, 2);
  EXPECT_TRUE(locate(2).empty());
  EXPECT_EQ(store_as(honest, {2, 3}).pages, 2u) << "the others go on";
}

TEST_F(BadClientTest, APageWhoseHeaderLiesAboutItsLengthIsWithdrawn) {
  start(8);
  const auto one = client();
  store_as(one, {1});
  const auto place = look_up_as(one, lookup({1})).places[0];
  // Bytes and checksum fit what the header says; it is just not the page that was stored.
  const auto longer = std::array{std::span<const std::byte>{object_at(place)}.first(200)};
  write_header(memory_, place.offset,
               {place.generation, 0, key_of(1), longer[0].size(), page_checksum(longer)});
  report(one, 1);
  EXPECT_TRUE(locate(1).empty());
  EXPECT_EQ(store_as(one, {1}).pages, 1u);
}

TEST_F(BadClientTest, AChecksumThatDoesNotFitIsFoundByWhoeverReads) {
  start(8);
  const auto liar = client();
  const auto got = reserve_as(liar, {1});
  const auto lie = write(got.places[0], 1) + 1;
  ASSERT_TRUE(
    ask_as<page_totals>(liar, atom::commit_v, complete_pages{got.reservation, {{key_of(1), lie}}}));
  const auto reader = client();
  const auto held = look_up_as(reader, lookup({1}));
  EXPECT_FALSE(is_page(held.places[0], 1));
  report(reader, 1);
  EXPECT_TRUE(locate(1).empty());
}

// -- floods -------------------------------------------------------------------

TEST_F(BadClientTest, OthersAreServedWhileDoubtfulPagesAreLookedAt) {
  start(8);
  const auto complaining = client();
  const auto other = client();
  store_as(other, {1});
  const auto looked
    = send_request_as<page_totals>(complaining, node_, atom::corrupt_v, many_keys());
  const auto found = send_request_as<leased_pages>(other, node_, atom::locate_v, lookup({1}));
  while (!found.arrived() && sched.try_run_once())
    continue;
  EXPECT_TRUE(found.arrived());
  EXPECT_FALSE(looked.arrived());
  run();
  EXPECT_EQ(looked.get(), (page_totals{many_keys().keys.size(), 0}));
  EXPECT_EQ(locate(1).size(), 1u) << "it is as it was written";
}

TEST_F(BadClientTest, OpenReportsAreBounded) {
  start(8);
  const auto flooding = client();
  auto answers = std::vector<reply<page_totals>>{};
  for (auto i = size_t{0}; i < limits::node_client_requests + 1; ++i)
    answers.push_back(send_request_as<page_totals>(flooding, node_, atom::corrupt_v, many_keys()));
  run();
  EXPECT_EQ(answers.back().code(), ec::limit_reached);
  EXPECT_EQ(std::ranges::count(answers, ec::none, &reply<page_totals>::code),
            limits::node_client_requests);
  EXPECT_EQ(status().clients[0].requests, 0u);
}

TEST_F(BadClientTest, AClientThatDiesWhileItsPagesAreLookedAtCostsNothing) {
  start(8);
  const auto dying = client();
  send_request_as<page_totals>(dying, node_, atom::corrupt_v, many_keys());
  for (auto i = 0; i < 20; ++i)
    sched.try_run_once();
  stop(dying);
  EXPECT_EQ(status().client_count, 0u);
  EXPECT_EQ(store_as(client(), {1}).pages, 1u);
}

TEST_F(BadClientTest, RequestsThatWaitForPagesOfOthersAreBounded) {
  // Answers all when it is asked for no pages.
  auto open = std::make_shared<std::vector<caf::typed_response_promise<atom::ok>>>();
  fetcher_ = spawn([open](fetcher_actor::pointer self) -> fetcher_actor::behavior_type {
    return {[open, self](atom::fetch, const page_fetch& wanted) -> caf::result<atom::ok> {
      if (!wanted.pages.list.empty())
        return open->emplace_back(self->make_response_promise<atom::ok>());
      for (auto& one : *open)
        one.deliver(atom::ok_v);
      return atom::ok_v;
    }};
  });
  start(8);
  const auto flooding = client();
  const auto other = client();
  auto patient = lookup({7});
  patient.wait_ms = 1000;
  auto answers = std::vector<reply<leased_pages>>{};
  for (auto i = size_t{0}; i < limits::node_client_requests + 1; ++i)
    answers.push_back(send_request_as<leased_pages>(flooding, node_, atom::locate_v, patient));
  run();
  EXPECT_EQ(answers.back().code(), ec::limit_reached);
  EXPECT_FALSE(answers.front().arrived());
  EXPECT_EQ(store_as(other, {1}).pages, 1u) << "the others go on";
  ask_value<atom::ok>(fetcher_, atom::fetch_v, page_fetch{});
  EXPECT_EQ(found(answers.front().get().value()), std::vector{false});
  EXPECT_EQ(status().clients[0].requests, 0u);
}

} // namespace
} // namespace hicache
