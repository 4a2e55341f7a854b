#include "base/limits.hpp"
#include "cache/store/client_table.hpp"
#include "messages/page_header.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace hicache {
namespace {

using test::key_of;
using namespace std::chrono_literals;

constexpr auto object = uint32_t{64};
constexpr auto slot = slot_bytes_for(object);

/// A pool of 16 slots: 2 for each client, 4 for each tenant, 8 for all.
class ClientTableTest : public ::testing::Test {
protected:
  void SetUp() override {
    ASSERT_TRUE(table.enter(1, {7, 70}));
    ASSERT_TRUE(table.enter(2, {7, 70}));
    ASSERT_TRUE(table.enter(3, {8, 80}));
  }

  static segment_pages pages(const std::vector<uint64_t>& numbers) {
    auto list = segment_pages{};
    for (const auto number : numbers)
      list.list.push_back({key_of(number), {}, object});
    return list;
  }

  static segment_slots slots(const std::vector<uint64_t>& numbers, segment_slot::state what) {
    auto list = segment_slots{};
    for (const auto number : numbers)
      list.list.push_back({key_of(number), what, number * slot, 1, object});
    return list;
  }

  result<uint64_t> ask_to_write(client_id client, const std::vector<uint64_t>& numbers) {
    auto wanted = pages(numbers);
    return table.ask_to_write(client, wanted);
  }

  /// A reservation; expects room.
  uint64_t reserve(client_id client, const std::vector<uint64_t>& numbers) {
    const auto request = ask_to_write(client, numbers);
    EXPECT_TRUE(request) << to_string(request.error());
    EXPECT_TRUE(
      table.grant_write(*request, slots(numbers, segment_slot::state::reserved)).list.empty());
    return *request;
  }

  granted_lease lease(client_id client, const segment_slots& found,
                      lease_extent extent = lease_extent::all, time_point until = time_point{1s}) {
    const auto request = table.ask_to_read(client, found.list.size());
    EXPECT_TRUE(request) << to_string(request.error());
    return table.grant_read(*request, found, extent, until);
  }

  static std::vector<page_key> keys(const segment_slots& of) {
    auto list = std::vector<page_key>{};
    for (const auto& one : of.list)
      list.push_back(one.key);
    return list;
  }

  client_table table{client_shares{16 * slot, 0.125, 0.25, 0.5}};
};

ec code_of(const auto& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

TEST_F(ClientTableTest, AReservationIsCommittedPageByPageAndTheRestComesBack) {
  const auto reservation = reserve(1, {10, 11});
  EXPECT_EQ(table.counters().reserved_bytes, 2 * slot);
  const auto complete = std::vector{key_of(11)};
  const auto ended = table.commit(1, reservation, complete);
  ASSERT_TRUE(ended);
  EXPECT_EQ(keys(ended->complete), complete);
  EXPECT_EQ(keys(ended->unused), std::vector{key_of(10)});
  EXPECT_EQ(table.counters().reserved_bytes, 0u);
  EXPECT_EQ(table.counters().reservations, 0u);
}

TEST_F(ClientTableTest, PagesAreWrittenOnBehalfOfTheClient) {
  auto wanted = pages({10});
  ASSERT_TRUE(table.ask_to_write(3, wanted));
  EXPECT_EQ(wanted.list[0].tenant, 8u);
  EXPECT_EQ(wanted.list[0].fingerprint, 80u);
}

TEST_F(ClientTableTest, WhatIsThereAlreadyIsNotCharged) {
  const auto request = ask_to_write(1, {10, 11});
  EXPECT_EQ(table.counters().reserved_bytes, 2 * slot);
  auto answer = slots({10, 11}, segment_slot::state::present);
  answer.list[1].what = segment_slot::state::reserved;
  table.grant_write(*request, answer);
  EXPECT_EQ(table.counters().reserved_bytes, slot);
  EXPECT_EQ(code_of(table.commit(1, *request, std::vector{key_of(10)})), ec::invalid_argument);
  EXPECT_EQ(code_of(table.commit(1, *request, std::vector{key_of(11)})), ec::none);
}

TEST_F(ClientTableTest, WithoutARoomThereIsNoReservation) {
  const auto request = ask_to_write(1, {10});
  table.grant_write(*request, slots({10}, segment_slot::state::full));
  EXPECT_EQ(table.counters().reservations, 0u);
  EXPECT_EQ(code_of(table.commit(1, *request, {})), ec::unknown_id);
}

TEST_F(ClientTableTest, AReservationEndsOnceAndForItsClientAlone) {
  const auto reservation = reserve(1, {10});
  EXPECT_EQ(code_of(table.commit(2, reservation, {})), ec::unknown_id);
  EXPECT_EQ(code_of(table.commit(1, reservation, std::vector{key_of(11)})), ec::invalid_argument);
  EXPECT_EQ(code_of(table.commit(1, reservation, std::vector{key_of(10), key_of(10)})),
            ec::invalid_argument);
  EXPECT_EQ(table.counters().reservations, 1u) << "mistakes change nothing";
  EXPECT_EQ(code_of(table.commit(1, reservation, {})), ec::none);
  EXPECT_EQ(code_of(table.commit(1, reservation, {})), ec::unknown_id);
}

TEST_F(ClientTableTest, ALeaseIsNoReservation) {
  const auto held = lease(1, slots({10}, segment_slot::state::present));
  EXPECT_EQ(code_of(table.commit(1, held.lease, {})), ec::unknown_id);
  const auto reservation = reserve(1, {11});
  EXPECT_EQ(code_of(table.release(1, reservation)), ec::unknown_id);
}

TEST_F(ClientTableTest, RequestsThatMakeNoSenseAreRefused) {
  EXPECT_EQ(code_of(ask_to_write(9, {10})), ec::unknown_id);
  EXPECT_EQ(code_of(ask_to_write(1, {})), ec::invalid_argument);
  EXPECT_EQ(code_of(ask_to_write(1, {10, 10})), ec::invalid_argument);
  auto wanted = pages({10});
  wanted.list[0].length = 0;
  EXPECT_EQ(code_of(table.ask_to_write(1, wanted)), ec::invalid_argument);
  wanted.list[0].length = limits::page_bytes + 1;
  EXPECT_EQ(code_of(table.ask_to_write(1, wanted)), ec::invalid_argument);
  wanted = pages({10});
  wanted.list[0].parent = key_of(10);
  EXPECT_EQ(code_of(table.ask_to_write(1, wanted)), ec::invalid_argument);
  auto many = std::vector<uint64_t>(limits::node_batch_pages + 1);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(code_of(ask_to_write(1, many)), ec::invalid_argument);
  EXPECT_EQ(code_of(table.ask_to_read(1, many.size())), ec::invalid_argument);
  EXPECT_EQ(code_of(table.ask_to_read(1, 0)), ec::invalid_argument);
  EXPECT_EQ(code_of(table.enter(1, {})), ec::invalid_argument);
  EXPECT_EQ(table.counters().requests, 0u);
  EXPECT_EQ(table.counters().pages, 0u);
}

TEST_F(ClientTableTest, NobodyWritesMoreThanItsShare) {
  EXPECT_EQ(code_of(ask_to_write(1, {1, 2, 3})), ec::limit_reached) << "the client's";
  reserve(1, {1, 2});
  EXPECT_EQ(code_of(ask_to_write(1, {3})), ec::limit_reached);
  reserve(2, {3, 4});
  ASSERT_TRUE(table.enter(4, {7, 70}));
  EXPECT_EQ(code_of(ask_to_write(4, {5})), ec::limit_reached) << "the tenant's";
  reserve(3, {5, 6});
  ASSERT_TRUE(table.enter(5, {9, 70}));
  reserve(5, {7, 8});
  ASSERT_TRUE(table.enter(6, {10, 70}));
  EXPECT_EQ(code_of(ask_to_write(6, {9})), ec::limit_reached) << "that of all";
  table.leave(5);
  EXPECT_EQ(code_of(ask_to_write(6, {9})), ec::none);
  EXPECT_EQ(table.counters().refused, 4u);
}

TEST_F(ClientTableTest, ALeaseGoesNoFurtherThanTheShares) {
  const auto first = lease(1, slots({1, 2, 3}, segment_slot::state::present));
  EXPECT_EQ(first.places.list[1].what, segment_slot::state::present);
  EXPECT_EQ(first.places.list[2].what, segment_slot::state::full);
  EXPECT_EQ(keys(first.surplus), std::vector{key_of(3)});
  const auto second = lease(1, slots({4}, segment_slot::state::present));
  EXPECT_EQ(second.lease, 0u);
  EXPECT_EQ(keys(second.surplus), std::vector{key_of(4)});
  EXPECT_EQ(table.counters().requests, 0u);
  ASSERT_TRUE(table.release(1, first.lease));
  EXPECT_NE(lease(1, slots({4}, segment_slot::state::present)).lease, 0u);
}

TEST_F(ClientTableTest, APrefixEndsAtTheFirstMissingPage) {
  auto found = slots({1, 2, 3}, segment_slot::state::present);
  found.list[1].what = segment_slot::state::full;
  const auto prefix = lease(1, found, lease_extent::prefix);
  EXPECT_EQ(prefix.places.list[0].what, segment_slot::state::present);
  EXPECT_EQ(prefix.places.list[2].what, segment_slot::state::full);
  EXPECT_EQ(keys(prefix.surplus), std::vector{key_of(3)});
  const auto all = lease(3, found);
  EXPECT_EQ(all.places.list[2].what, segment_slot::state::present);
  EXPECT_TRUE(all.surplus.list.empty());
}

TEST_F(ClientTableTest, ALeaseEndsOnceByReleaseOrByItsTime) {
  const auto found = slots({1}, segment_slot::state::present);
  const auto first = lease(1, found, lease_extent::all, time_point{2s});
  const auto second = lease(2, found, lease_extent::all, time_point{3s});
  EXPECT_EQ(code_of(table.release(2, first.lease)), ec::unknown_id) << "of another client";
  EXPECT_TRUE(table.expire(time_point{1s}).list.empty());
  EXPECT_EQ(table.expire(time_point{2s}).list.size(), 1u);
  EXPECT_EQ(code_of(table.release(1, first.lease)), ec::unknown_id) << "too late";
  EXPECT_EQ(table.release(2, second.lease)->list.size(), 1u);
  EXPECT_EQ(code_of(table.release(2, second.lease)), ec::unknown_id) << "twice";
  EXPECT_TRUE(table.expire(time_point{9s}).list.empty());
  EXPECT_EQ(table.counters().expired, 1u);
  EXPECT_EQ(table.counters().leased_bytes, 0u);
}

TEST_F(ClientTableTest, AClientThatLeavesLeavesNothingBehind) {
  reserve(1, {10});
  lease(1, slots({20}, segment_slot::state::present));
  const auto writes = ask_to_write(1, {11});
  const auto reads = table.ask_to_read(1, 1);
  const auto left = table.leave(1);
  EXPECT_EQ(keys(left.reserved), std::vector{key_of(10)});
  EXPECT_EQ(keys(left.leased), std::vector{key_of(20)});
  EXPECT_EQ(table.counters().pages, 0u);
  EXPECT_EQ(table.counters().requests, 0u);
  // What the segment gives to requests of a client that is gone comes back.
  EXPECT_EQ(table.grant_write(*writes, slots({11}, segment_slot::state::reserved)).list.size(), 1u);
  const auto late = table.grant_read(*reads, slots({20}, segment_slot::state::present),
                                     lease_extent::all, time_point{1s});
  EXPECT_EQ(late.lease, 0u);
  EXPECT_EQ(late.surplus.list.size(), 1u);
  EXPECT_EQ(table.leave(1).reserved.list.size(), 0u);
  EXPECT_FALSE(table.find(1));
}

TEST_F(ClientTableTest, TrafficIsCountedForEachClientAndOutlivesIt) {
  const auto reservation = reserve(1, {10, 11});
  EXPECT_EQ(table.counters().traffic, client_traffic{});
  ASSERT_TRUE(table.commit(1, reservation, std::vector{key_of(11)}));
  auto found = slots({1, 2, 3}, segment_slot::state::present);
  found.list[1].what = segment_slot::state::full;
  lease(1, found, lease_extent::prefix);
  lease(2, found);
  table.refuse(table.ask_to_read(2, 5).value());
  EXPECT_EQ(table.clients()[0].traffic, (client_traffic{1, object, 3, 1, object}));
  EXPECT_EQ(table.clients()[1].traffic, (client_traffic{0, 0, 3, 2, 2 * object}));
  table.leave(1);
  EXPECT_EQ(table.counters().traffic, (client_traffic{1, object, 6, 3, 3 * object}));
}

TEST_F(ClientTableTest, ARefusedRequestCostsNothing) {
  const auto request = ask_to_write(1, {10, 11});
  table.refuse(*request);
  table.refuse(*request);
  EXPECT_EQ(table.counters().reserved_bytes, 0u);
  EXPECT_EQ(code_of(ask_to_write(1, {10, 11})), ec::none);
}

TEST_F(ClientTableTest, OpenRequestsAreBounded) {
  for (auto i = size_t{0}; i < limits::node_client_requests; ++i)
    ASSERT_TRUE(table.ask_to_read(1, 1));
  EXPECT_EQ(code_of(table.ask_to_read(1, 1)), ec::limit_reached);
  EXPECT_EQ(code_of(table.ask_to_read(2, 1)), ec::none) << "others go on";
}

TEST_F(ClientTableTest, PagesOfAClientAreBounded) {
  auto roomy = client_table{client_shares{uint64_t{1} << 40, 1, 1, 1}};
  ASSERT_TRUE(roomy.enter(1, {}));
  auto found = segment_slots{};
  for (auto i = uint64_t{0}; i < limits::node_batch_pages; ++i)
    found.list.push_back({key_of(i), segment_slot::state::present, i * slot, 1, object});
  for (auto i = size_t{0}; i < limits::node_client_pages / limits::node_batch_pages; ++i)
    roomy.grant_read(roomy.ask_to_read(1, found.list.size()).value(), found, lease_extent::all, {});
  EXPECT_EQ(code_of(roomy.ask_to_read(1, 1)), ec::limit_reached);
}

TEST_F(ClientTableTest, ClientsAreBounded) {
  for (auto i = client_id{4}; i <= limits::node_clients; ++i)
    ASSERT_TRUE(table.enter(i, {}));
  EXPECT_EQ(code_of(table.enter(limits::node_clients + 1, {})), ec::limit_reached);
  table.leave(1);
  EXPECT_TRUE(table.enter(limits::node_clients + 1, {}));
}

} // namespace
} // namespace hicache
