// A node, its segment, and processes that are its clients.

#include "tests/actors/node_fixture.hpp"

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

TEST_F(NodeTest, WhatOneClientWritesAnotherOneReadsInPlace) {
  start(8);
  const auto writer = client();
  EXPECT_EQ(store_as(writer, {1, 2}), (page_totals{2, 2 * slot_bytes}));
  EXPECT_EQ(locate(1).size(), 1u) << "the index knows";
  const auto reader = client();
  const auto answer = look_up_as(reader, lookup({1, 2, 3}));
  EXPECT_NE(answer.lease, 0u);
  EXPECT_EQ(found(answer), (std::vector{true, true, false}));
  const auto& place = answer.places[1];
  EXPECT_TRUE(is_page(place, 2));
  EXPECT_EQ(ask_as<page_totals>(reader, atom::release_v, client_ticket{answer.lease}),
            (page_totals{2, 2 * slot_bytes}));
}

TEST_F(NodeTest, TellsWhereTheMemoryIsAndKnowsAClientOnce) {
  start(1);
  const auto one = spawn_asker();
  const auto info = ask_as<node_info>(one, atom::attach_v, client_info{});
  ASSERT_TRUE(info);
  EXPECT_EQ(info->memory_name, "memory");
  EXPECT_EQ(info->memory_bytes, memory_.size());
  EXPECT_EQ(info->lease_ms, 300'000u);
  EXPECT_EQ(code_of(ask_as<node_info>(one, atom::attach_v, client_info{})), ec::invalid_argument);
}

TEST_F(NodeTest, WhoDoesNotSayWhoItIsGetsNothing) {
  start(2);
  const auto stranger = spawn_asker();
  EXPECT_EQ(code_of(ask_as<reserved_pages>(stranger, atom::reserve_v, pages({1}))), ec::unknown_id);
  EXPECT_EQ(code_of(ask_as<leased_pages>(stranger, atom::locate_v, lookup({1}))), ec::unknown_id);
  EXPECT_EQ(code_of(ask_as<page_totals>(stranger, atom::fetch_v, page_prefetch{{key_of(1)}})),
            ec::unknown_id);
  EXPECT_EQ(code_of(ask_as<page_totals>(stranger, atom::commit_v, complete_pages{1, {}})),
            ec::unknown_id);
  EXPECT_EQ(code_of(ask_as<page_totals>(stranger, atom::release_v, client_ticket{1})),
            ec::unknown_id);
}

TEST_F(NodeTest, WhatIsThereIsNotWrittenAgain) {
  start(8);
  const auto writer = client();
  store_as(writer, {1});
  const auto got = reserve_as(writer, {1, 2});
  EXPECT_EQ(got.places[0], (page_place{place_status::present}));
  EXPECT_EQ(got.places[1].status, place_status::writable);
  EXPECT_EQ(reserve_as(writer, {1}).reservation, 0u);
}

TEST_F(NodeTest, AClientThatDiesBetweenReserveAndCommitCostsNothing) {
  start(4);
  const auto writer = client();
  reserve_as(writer, {1});
  const auto other = client();
  reserve_as(other, {2});
  stop(writer);
  EXPECT_EQ(status().client_count, 1u);
  EXPECT_EQ(status().reserved_bytes, slot_bytes);
  EXPECT_EQ(reserve_as(client(), {1}).places[0].status, place_status::writable);
}

TEST_F(NodeTest, AClientThatDiesWhileTheSegmentAnswersCostsNothing) {
  start(1, {0, 1, 1, 1});
  const auto writer = client();
  const auto answer = send_request_as<reserved_pages>(writer, node_, atom::reserve_v, pages({1}));
  // The writer's request goes out, and the node's to the segment; then it ends.
  for (auto i = 0; i < 3; ++i)
    sched.try_run_once();
  stop(writer);
  EXPECT_EQ(status().reserved_bytes, 0u);
  EXPECT_EQ(reserve_as(client(), {2}).places[0].status, place_status::writable);
}

TEST_F(NodeTest, PagesThatADeadClientReadMayGo) {
  start(2);
  const auto writer = client();
  store_as(writer, {1});
  const auto reader = client();
  look_up_as(reader, lookup({1}));
  const auto held = locate(1);
  ASSERT_EQ(held.size(), 1u);
  store_as(writer, {2});
  store_as(writer, {3});
  EXPECT_EQ(locate(1), held) << "not evicted while it is leased";
  stop(reader);
  store_as(writer, {4});
  store_as(writer, {5});
  EXPECT_TRUE(locate(1).empty());
}

TEST_F(NodeTest, ALeaseEndsByItsTime) {
  start(2);
  const auto writer = client();
  store_as(writer, {1});
  auto wanted = lookup({1});
  wanted.lease_ms = 2000;
  const auto answer = look_up_as(writer, wanted);
  EXPECT_EQ(answer.lease_ms, 2000u);
  advance_in_steps(1900ms, 19);
  EXPECT_EQ(status().leases, 1u);
  advance_in_steps(500ms, 5);
  EXPECT_EQ(status().leases, 0u);
  EXPECT_EQ(status().expired_leases, 1u);
  EXPECT_EQ(code_of(ask_as<page_totals>(writer, atom::release_v, client_ticket{answer.lease})),
            ec::unknown_id);
  store_as(writer, {2});
  store_as(writer, {3});
  EXPECT_TRUE(locate(1).empty());
}

TEST_F(NodeTest, ALeaseLastsNoLongerThanTheNodeAllows) {
  start(2);
  const auto one = client();
  store_as(one, {1});
  auto wanted = lookup({1});
  wanted.lease_ms = ~uint64_t{0};
  EXPECT_EQ(look_up_as(one, wanted).lease_ms, 300'000u);
}

TEST_F(NodeTest, TheNodesLeaseTimeIsASetting) {
  lease_time_ = 20s;
  start(2);
  const auto one = client();
  store_as(one, {1});
  auto wanted = lookup({1});
  EXPECT_EQ(look_up_as(one, wanted).lease_ms, 20'000u);
  wanted.lease_ms = 30'000;
  EXPECT_EQ(look_up_as(one, wanted).lease_ms, 20'000u);
  EXPECT_EQ(ask_as<node_info>(spawn_asker(), atom::attach_v, client_info{})->lease_ms, 20'000u);
}

TEST_F(NodeTest, OnlyWhatIsCommittedIsOffered) {
  start(8);
  const auto writer = client();
  const auto got = reserve_as(writer, {1, 2});
  const auto checksum = write(got.places[1], 2);
  EXPECT_EQ(found(look_up_as(writer, lookup({1, 2}))), (std::vector{false, false}));
  EXPECT_EQ(ask_as<page_totals>(writer, atom::commit_v,
                                complete_pages{got.reservation, {{key_of(2), checksum}}}),
            (page_totals{1, slot_bytes}));
  EXPECT_EQ(found(look_up_as(writer, lookup({1, 2}))), (std::vector{false, true}));
  EXPECT_EQ(status().used_bytes, slot_bytes);
}

TEST_F(NodeTest, AnAbortedReservationIsFreeAgain) {
  start(1, {0, 1, 1, 1});
  const auto writer = client();
  const auto got = reserve_as(writer, {1});
  EXPECT_EQ(ask_as<page_totals>(writer, atom::abort_v, client_ticket{got.reservation}),
            (page_totals{1, slot_bytes}));
  EXPECT_EQ(code_of(ask_as<page_totals>(writer, atom::abort_v, client_ticket{got.reservation})),
            ec::unknown_id);
  EXPECT_EQ(reserve_as(writer, {2}).places[0].status, place_status::writable);
}

TEST_F(NodeTest, APageThatAClientFoundDamagedIsWithdrawnIfItIs) {
  start(8);
  const auto one = client();
  store_as(one, {1, 2});
  const auto held = look_up_as(one, lookup({1}));
  memory_[held.places[0].offset + slot_object_offset] ^= std::byte{1};
  const auto both = key_batch{{key_of(1), key_of(2)}};
  EXPECT_EQ(code_of(ask_as<page_totals>(spawn_asker(), atom::corrupt_v, both)), ec::unknown_id);
  EXPECT_EQ(locate(1).size(), 1u);
  ASSERT_TRUE(ask_as<page_totals>(one, atom::corrupt_v, both));
  EXPECT_TRUE(locate(1).empty());
  EXPECT_EQ(locate(2).size(), 1u);
  EXPECT_EQ(reserve_as(one, {1}).places[0].status, place_status::writable);
}

TEST_F(NodeTest, AClientRemovesPagesOfItsNamespaceAndNoOthers) {
  start(8);
  const auto one = client(0, 7);
  const auto other = client(0, 8);
  store_as(one, {1, 2});
  store_as(other, {3});
  const auto unwanted = key_batch{{key_of(1), key_of(3), key_of(4)}};
  EXPECT_EQ(code_of(ask_as<page_totals>(spawn_asker(), atom::remove_v, unwanted)), ec::unknown_id);
  EXPECT_EQ(ask_as<page_totals>(one, atom::remove_v, unwanted), (page_totals{1, slot_bytes}));
  EXPECT_TRUE(locate(1).empty());
  EXPECT_EQ(found(look_up_as(one, lookup({1, 2}))), (std::vector{false, true}));
  EXPECT_EQ(found(look_up_as(other, lookup({3}))), std::vector{true});
  EXPECT_EQ(status().clients[0].requests, 0u);
}

TEST_F(NodeTest, AClientClearsItsNamespaceAndNoOther) {
  start(8);
  const auto one = client(0, 7);
  store_as(one, {1, 2});
  store_as(client(0, 8), {3});
  EXPECT_EQ(code_of(ask_as<page_totals>(spawn_asker(), atom::clear_v, namespace_pages{7})),
            ec::unknown_id);
  EXPECT_EQ(code_of(ask_as<page_totals>(one, atom::clear_v, namespace_pages{8})),
            ec::invalid_argument);
  EXPECT_EQ(ask_as<page_totals>(one, atom::clear_v, namespace_pages{7}),
            (page_totals{2, 2 * slot_bytes}));
  EXPECT_EQ(found(look_up_as(one, lookup({1, 2}))), (std::vector{false, false}));
  EXPECT_EQ(locate(3).size(), 1u);
}

TEST_F(NodeTest, PagesOfAVersionThatHasEndedLeaveFirst) {
  start(4);
  const auto one = client(0, 7);
  const auto other = client(0, 8);
  store_as(other, {1, 2});
  store_as(one, {3, 4});
  EXPECT_EQ(ask_as<page_totals>(one, atom::clear_v, namespace_pages{7, true}),
            (page_totals{2, 2 * slot_bytes}));
  EXPECT_EQ(found(look_up_as(one, lookup({4}))), std::vector{true});
  store_as(other, {5});
  EXPECT_TRUE(locate(3).empty());
  EXPECT_EQ(locate(1).size() + locate(2).size() + locate(4).size(), 3u);
}

TEST_F(NodeTest, ARemovedPageThatIsLeasedStaysReadable) {
  start(2);
  const auto one = client();
  store_as(one, {1});
  const auto held = look_up_as(one, lookup({1}));
  ASSERT_TRUE(ask_as<page_totals>(one, atom::remove_v, key_batch{{key_of(1)}}));
  store_as(one, {2});
  store_as(one, {3});
  EXPECT_EQ(memory_[held.places[0].offset + slot_object_offset], std::byte{1});
  const auto again = reserve_as(one, {1}).places[0];
  EXPECT_EQ(again.status, place_status::writable);
  EXPECT_NE(again.offset, held.places[0].offset);
  ASSERT_TRUE(ask_as<page_totals>(one, atom::release_v, client_ticket{held.lease}));
  EXPECT_EQ(state_of<segment_state>(segment_).table->counters().held_bytes, 0u);
}

TEST_F(NodeTest, ClientsOfOtherNamespacesDoNotFindThePages) {
  start(4);
  store_as(client(0, 7), {1});
  EXPECT_EQ(found(look_up_as(client(0, 8), lookup({1}))), std::vector{false});
  EXPECT_EQ(found(look_up_as(client(0, 7), lookup({1}))), std::vector{true});
}

TEST_F(NodeTest, AClientThatWritesTooMuchDoesNotKeepOthersOut) {
  start(8, {0, 0.25, 0.5, 1});
  const auto greedy = client(1);
  EXPECT_EQ(code_of(ask_as<reserved_pages>(greedy, atom::reserve_v, pages({1, 2, 3}))),
            ec::limit_reached);
  reserve_as(greedy, {1, 2});
  EXPECT_EQ(code_of(ask_as<reserved_pages>(greedy, atom::reserve_v, pages({3}))),
            ec::limit_reached);
  reserve_as(client(2), {4, 5});
  EXPECT_EQ(status().refused, 2u);
}

TEST_F(NodeTest, AChainEndsAtTheFirstPageThatIsMissing) {
  start(8);
  const auto one = client();
  store_as(one, {1, 3});
  auto wanted = lookup({1, 2, 3});
  wanted.is_chain = true;
  EXPECT_EQ(found(look_up_as(one, wanted)), (std::vector{true, false, false}));
  wanted.is_chain = false;
  EXPECT_EQ(found(look_up_as(one, wanted)), (std::vector{true, false, true}));
}

TEST_F(NodeTest, ShowsItsClients) {
  start(8);
  const auto first = client(7, 70);
  const auto second = client(8, 80);
  reserve_as(first, {1});
  store_as(second, {2});
  look_up_as(second, lookup({2, 3}));
  const auto all = status();
  EXPECT_EQ(all.clients,
            (std::vector<node_client_state>{{1, {7, 70}, slot_bytes, 0, 1, 0, {}},
                                            {2, {8, 80}, 0, slot_bytes, 1, 0, {1, 64, 2, 1, 64}}}));
  EXPECT_FALSE(all.has_more);
  EXPECT_EQ(all.capacity_bytes, memory_.size());
  EXPECT_EQ(all.used_bytes, 2 * slot_bytes);
  EXPECT_EQ(all.pages, 1u);
  EXPECT_EQ(all.pages_wanted, 2u);
  EXPECT_EQ(all.pages_found, 1u);
  EXPECT_EQ(all.pages_written, 1u);
  const auto part = ask_value<node_status>(node_, atom::status_v, status_query{0, 1});
  EXPECT_EQ(part.clients.size(), 1u);
  EXPECT_TRUE(part.has_more);
  EXPECT_EQ(ask_value<node_status>(node_, atom::status_v, status_query{2, 1}).clients[0].client,
            2u);
}

TEST_F(NodeTest, ADeadSegmentIsAnErrorAndNotASilence) {
  start(2);
  const auto one = client();
  stop(segment_);
  EXPECT_FALSE(ask_as<reserved_pages>(one, atom::reserve_v, pages({1})));
  EXPECT_FALSE(ask_as<leased_pages>(one, atom::locate_v, lookup({1})));
  EXPECT_EQ(status().reserved_bytes, 0u);
}

// -- pages of other members ---------------------------------------------------

/// Its fetcher answers when it is asked for no pages.
class FetchingNodeTest : public NodeTest {
protected:
  void SetUp() override {
    fetcher_ = spawn([this](fetcher_actor::pointer self) -> fetcher_actor::behavior_type {
      return {[this, self](atom::fetch, const page_fetch& wanted) -> caf::result<atom::ok> {
        if (wanted.pages.list.empty()) {
          fetched_->deliver(atom::ok_v);
          return atom::ok_v;
        }
        asked_.push_back(wanted);
        fetched_ = self->make_response_promise<atom::ok>();
        return *fetched_;
      }};
    });
    start(8);
  }

  /// The replicator has read this page, and the fetcher says so.
  void arrive(uint64_t number) {
    auto slots = reserve({number});
    seal(slots.list[0], 0);
    send_publish(slots);
    run();
    ask_value<atom::ok>(fetcher_, atom::fetch_v, page_fetch{});
  }

  std::vector<page_fetch> asked_;
  std::optional<caf::typed_response_promise<atom::ok>> fetched_;
};

TEST_F(FetchingNodeTest, ALookUpWaitsForPagesOfOthersUpToItsTime) {
  const auto one = client(5);
  store_as(one, {1});
  auto wanted = lookup({1, 9});
  wanted.is_chain = true;
  wanted.wait_ms = 1000;
  const auto answer = send_request_as<leased_pages>(one, node_, atom::locate_v, wanted);
  run();
  EXPECT_FALSE(answer.arrived());
  ASSERT_EQ(asked_.size(), 1u);
  ASSERT_EQ(asked_[0].pages.list.size(), 1u);
  EXPECT_EQ(asked_[0].pages.list[0].key, key_of(9));
  EXPECT_EQ(asked_[0].pages.list[0].parent, key_of(1));
  EXPECT_EQ(asked_[0].pages.list[0].tenant, 5u);
  EXPECT_EQ(asked_[0].deadline, clock.now() + 1s);
  arrive(9);
  ASSERT_TRUE(answer.get());
  EXPECT_EQ(found(*answer.get()), (std::vector{true, true}));
}

TEST_F(FetchingNodeTest, WhatDoesNotComeInTimeIsAMiss) {
  const auto one = client();
  store_as(one, {1});
  auto wanted = lookup({1, 9});
  wanted.wait_ms = 1000;
  const auto answer = send_request_as<leased_pages>(one, node_, atom::locate_v, wanted);
  run();
  advance(1s);
  ASSERT_TRUE(answer.get());
  EXPECT_EQ(found(*answer.get()), (std::vector{true, false}));
}

TEST_F(FetchingNodeTest, WithoutATimeNobodyIsAsked) {
  EXPECT_EQ(found(look_up_as(client(), lookup({9}))), std::vector{false});
  EXPECT_TRUE(asked_.empty());
}

TEST_F(FetchingNodeTest, AClientThatDiesWhileItWaitsLeavesNoHolds) {
  const auto one = client();
  store_as(one, {1});
  auto wanted = lookup({1, 9});
  wanted.wait_ms = 1000;
  send_request_as<leased_pages>(one, node_, atom::locate_v, wanted);
  run();
  stop(one);
  arrive(9);
  EXPECT_EQ(status().leases, 0u);
  EXPECT_EQ(state_of<segment_state>(segment_).table->counters().held_bytes, 0u);
}

TEST_F(FetchingNodeTest, APrefetchBringsPagesAndLeasesNone) {
  const auto one = client();
  store_as(one, {1});
  const auto answer = send_request_as<page_totals>(
    one, node_, atom::fetch_v, page_prefetch{{key_of(1), key_of(9), key_of(10)}, false, 1000});
  run();
  arrive(9);
  ASSERT_TRUE(answer.get());
  EXPECT_EQ(*answer.get(), (page_totals{2, 2 * slot_bytes, {key_of(10)}}));
  EXPECT_EQ(status().leases, 0u);
  EXPECT_EQ(status().clients[0].pages, 0u);
  EXPECT_EQ(state_of<segment_state>(segment_).table->counters().held_bytes, 0u);
}

} // namespace
} // namespace hicache
