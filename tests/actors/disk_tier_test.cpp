// A node with a disk below its memory, and the next one with the same disk.

#include "actors/disk_tier.hpp"
#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_log.hpp"
#include "backends/storage_queue.hpp"
#include "tests/actors/node_fixture.hpp"
#include "tests/backends/disk/losing_disk.hpp"
#include "tests/backends/faulty_store.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

/// The index as versions before 6 are.
index_actor::behavior_type run_older_index(index_actor::pointer self, const index_actor& index) {
  return {
    [=](atom::mount, const member_info& x) {
      auto promise = self->make_response_promise<membership>();
      self->request(index, caf::infinite, atom::mount_v, x)
        .then(
          [promise](membership& view) mutable {
            view.takes_disk = false;
            promise.deliver(std::move(view));
          },
          [promise](caf::error& err) mutable { promise.deliver(std::move(err)); });
      return promise;
    },
    [=](atom::tick, const heartbeat& x) { return self->delegate(index, atom::tick_v, x); },
    [=](atom::publish, const published_pages& x) {
      return self->delegate(index, atom::publish_v, x);
    },
    [=](atom::withdraw, const withdrawn_pages& x) {
      return self->delegate(index, atom::withdraw_v, x);
    },
    [=](atom::locate, const key_batch& x) { return self->delegate(index, atom::locate_v, x); },
    [=](atom::await, const awaited_pages& x) { return self->delegate(index, atom::await_v, x); },
    [=](atom::members, const member_query& x) { return self->delegate(index, atom::members_v, x); },
    [=](atom::status, const status_query& x) { return self->delegate(index, atom::status_v, x); },
    [](atom::shards, uint64_t) {},
    [](atom::poll) {},
    [](atom::drop) {},
    [](atom::await, uint64_t) {},
  };
}

class DiskTierTest : public NodeTest {
protected:
  DiskTierTest() { policy_.held_share = 1; }

  ~DiskTierTest() override { stop_all(); }

  void start_below() override {
    on_disk_ = std::make_shared<disk_figures>();
    auto options = disk_options{};
    options.name = "disk";
    options.segment_bytes = segment_bytes;
    options.segments = 16;
    options.live_bytes = max_pages_ * disk_block_bytes;
    auto store = make_disk_backend(options, std::make_unique<losing_disk>(image_), clock);
    ASSERT_TRUE(store) << store.error().detail;
    store_ = std::make_shared<faulty_store>(std::make_unique<storage_queue>(std::move(*store), 0));
    disk_ = spawn(disk_tier,
                  disk_tier_options{store_, memory_, segment_, disk_pages_, on_disk_, &clock});
    caf::anon_send(segment_, atom::attach_v, caf::actor_cast<caf::strong_actor_ptr>(disk_));
    run();
  }

  /// A node whose clients may use all of it.
  void begin(uint32_t slots) {
    disk_pages_ = std::make_shared<disk_table>();
    start(slots, {0, 1, 1, 1});
  }

  index_view_ptr view() const override {
    return older_index_
             ? std::make_shared<const index_view>(index_view{{{0, older_index_, "here"}}})
             : NodeTest::view();
  }

  void remove_from_memory(uint64_t number) {
    const auto keys = std::make_shared<const std::vector<page_key>>(1, key_of(number));
    EXPECT_TRUE(ask<atom::ok>(segment_, atom::remove_v, keys));
  }

  /// What a reader elsewhere is told that has pages brought from disk.
  placements recall(const std::vector<uint64_t>& numbers, uint64_t fingerprint = 0) {
    auto wanted = page_recall{fingerprint, {}, 1000};
    for (const auto number : numbers)
      wanted.keys.push_back(key_of(number));
    return ask_value<placements>(segment_, atom::recall_v, wanted);
  }

  /// Another node with the same disk.
  void restart(uint32_t slots) {
    stop(node_);
    stop(disk_);
    stop(segment_);
    store_.reset();
    figures_ = std::make_shared<member_figures>();
    begin(slots);
  }

  static page_lookup patient(const std::vector<uint64_t>& numbers) {
    auto wanted = lookup(numbers);
    wanted.wait_ms = 1000;
    return wanted;
  }

  /// Which of the pages a client gets that waits for the disk; all of them as they were stored.
  std::vector<bool> get(const std::vector<uint64_t>& numbers, uint64_t fingerprint = 0) {
    const auto one = client(0, fingerprint);
    const auto answer = look_up_as(one, patient(numbers));
    for (auto i = size_t{0}; i < numbers.size(); ++i)
      if (answer.places[i].status == place_status::present && fingerprint == 0) {
        EXPECT_TRUE(is_page(answer.places[i], numbers[i])) << numbers[i];
      }
    if (answer.lease != 0) {
      EXPECT_TRUE(ask_as<page_totals>(one, atom::release_v, client_ticket{answer.lease}));
    }
    return found(answer);
  }

  bool is_on_disk(uint64_t number) {
    auto is_there = false;
    store_->lookup(std::vector{key_of(number)}, time_point::max(),
                   [&](const auto& places) { is_there = places.at(0).has_value(); });
    return is_there;
  }

  /// Behind the actor's back.
  void lose(const std::vector<uint64_t>& numbers) {
    for (const auto number : numbers)
      store_->remove(std::vector{key_of(number)}, time_point::max(), [](const auto&) {});
  }

  segment_pages pages_to_write(const std::vector<uint64_t>& numbers) {
    auto pages = segment_pages{};
    for (const auto number : numbers)
      pages.list.push_back({key_of(number), {}, 64});
    return pages;
  }

  /// Has the next batches of this kind return when the test says so.
  void hang(batch_kind kind) {
    store_->set_faults(
      [kind](batch_kind x) { return x == kind ? store_fault::late : store_fault::none; });
  }

  static constexpr auto segment_bytes = 64 * uint64_t{disk_block_bytes};

  disk_image image_{segment_bytes};
  /// Set before begin(): as many pages fit on the disk.
  uint64_t max_pages_ = 256;
  /// Set if the segment reports to it.
  index_actor older_index_;
  std::shared_ptr<faulty_store> store_;
};

using list = std::vector<bool>;

TEST_F(DiskTierTest, WhatMemoryEvictedComesBackFromDisk) {
  begin(4);
  store_as(client(), {1, 2, 3, 4});
  store_as(client(), {5, 6, 7, 8});
  EXPECT_EQ(status().evicted, 4u);
  EXPECT_EQ(get({1, 2, 3, 4}), (list{true, true, true, true}));
  const auto now = status();
  EXPECT_EQ(now.disk_pages, 8u);
  EXPECT_EQ(now.disk_bytes, 8 * (64 + page_header_bytes));
  EXPECT_EQ(now.disk_pages_written, 8u);
  EXPECT_EQ(now.disk_pages_read, 4u);
  EXPECT_EQ(now.disk_pages_failed + now.disk_pages_skipped, 0u);
}

TEST_F(DiskTierTest, WhoDoesNotWaitGetsWhatMemoryHas) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  EXPECT_EQ(found(look_up_as(client(), lookup({1, 2}))), (list{false, true}));
  EXPECT_EQ(status().disk_pages_read, 0u);
}

TEST_F(DiskTierTest, TheNextNodeFindsThePages) {
  begin(8);
  store_as(client(), {1, 2, 3});
  restart(8);
  EXPECT_EQ(status().pages, 0u);
  EXPECT_EQ(status().disk_pages, 3u);
  EXPECT_EQ(get({1, 2, 3, 4}), (list{true, true, true, false}));
}

TEST_F(DiskTierTest, AsManyPagesComeBackAsMemoryHasRoomFor) {
  begin(8);
  store_as(client(), {1, 2, 3});
  restart(2);
  EXPECT_EQ(get({1, 2, 3}).size(), 3u);
  EXPECT_EQ(status().pages, 2u);
}

TEST_F(DiskTierTest, WhatIsLeasedIsNotPushedOut) {
  begin(2);
  store_as(client(), {1});
  store_as(client(), {2, 3});
  const auto one = client();
  EXPECT_EQ(found(look_up_as(one, lookup({2, 3}))), (list{true, true}));
  EXPECT_EQ(get({1}), list{false});
}

TEST_F(DiskTierTest, RemovedPagesDoNotComeBack) {
  begin(8);
  const auto one = client();
  store_as(one, {1, 2});
  EXPECT_EQ(remove_as(one, {1}).pages, 1u);
  EXPECT_FALSE(is_on_disk(1));
  EXPECT_EQ(get({1, 2}), (list{false, true}));
  restart(8);
  EXPECT_EQ(get({1, 2}), (list{false, true}));
}

TEST_F(DiskTierTest, WhatIsRemovedBeforeItIsWrittenIsNotWritten) {
  begin(8);
  store_as(client(), {1, 2});
  lose({1, 2});
  caf::anon_send(disk_, atom::backup_v, pages_to_write({1, 2}));
  EXPECT_TRUE(ask<atom::ok>(disk_, atom::remove_v, segment_holds{0, {key_of(1)}}));
  EXPECT_FALSE(is_on_disk(1));
  EXPECT_TRUE(is_on_disk(2));
}

TEST_F(DiskTierTest, NamespacesSeeTheirOwnPagesOnly) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  EXPECT_EQ(get({1}, 9), list{false});
  remove_as(client(0, 9), {1});
  EXPECT_TRUE(is_on_disk(1));
  EXPECT_EQ(get({1}), list{true});
}

TEST_F(DiskTierTest, AClearedNamespaceIsGoneFromDiskToo) {
  begin(8);
  store_as(client(), {1, 2, 300});
  store_as(client(0, 9), {4});
  const auto cleared = send_request<page_totals>(segment_, atom::clear_v, namespace_pages{0});
  const auto wanted = send_request<atom::ok>(
    disk_, atom::fetch_v, page_fetch{pages_to_write({1, 300}), clock.now() + 1s});
  run();
  EXPECT_EQ(cleared.get()->pages, 3u);
  EXPECT_TRUE(wanted.arrived());
  EXPECT_EQ(status().pages, 1u) << "nothing is brought back before all is gone";
  EXPECT_FALSE(is_on_disk(1) || is_on_disk(2) || is_on_disk(300));
  EXPECT_EQ(get({1, 2, 300}), (list{false, false, false}));
  EXPECT_EQ(get({4}, 9), list{true});
  store_as(client(), {1});
  EXPECT_TRUE(is_on_disk(1));
}

TEST_F(DiskTierTest, WhatAClientChangedAfterItsCommitIsFoundOut) {
  begin(1);
  store_as(client(), {1});
  lose({1});
  memory_[slot_object_offset + 5] ^= std::byte{1};
  caf::anon_send(disk_, atom::backup_v, pages_to_write({1}));
  run();
  EXPECT_TRUE(is_on_disk(1));
  store_as(client(), {2});
  EXPECT_EQ(get({1}), list{false});
  EXPECT_FALSE(is_on_disk(1));
  EXPECT_EQ(status().disk_pages_failed, 1u);
}

TEST_F(DiskTierTest, PagesThatLeftMemoryBeforeAreCounted) {
  begin(2);
  store_as(client(), {1});
  caf::anon_send(disk_, atom::backup_v, pages_to_write({7, 8}));
  run();
  EXPECT_EQ(status().disk_pages_skipped, 2u);
  EXPECT_EQ(status().disk_pages, 1u);
}

TEST_F(DiskTierTest, TheDiskIsBoundedAndAPageGoesAfterThoseBehindIt) {
  max_pages_ = 3;
  begin(8);
  const auto one = client();
  auto wanted = pages({1, 2});
  wanted.pages[1].parent = key_of(1);
  const auto got = ask_as<reserved_pages>(one, atom::reserve_v, wanted).value();
  auto complete = complete_pages{got.reservation, {}};
  for (const auto number : {1, 2})
    complete.pages.push_back({key_of(number), write(got.places[number - 1], number)});
  EXPECT_TRUE(ask_as<page_totals>(one, atom::commit_v, complete));
  store_as(one, {3, 4});
  EXPECT_TRUE(is_on_disk(1)) << "it is older, and has a child";
  EXPECT_FALSE(is_on_disk(2));
  EXPECT_TRUE(is_on_disk(3) && is_on_disk(4));
  EXPECT_EQ(status().disk_pages, 3u);
}

TEST_F(DiskTierTest, ADiskThatFailsCostsHitsOnly) {
  begin(2);
  image_.fail_after(0);
  store_as(client(), {1, 2});
  EXPECT_EQ(get({1, 2, 3}), (list{true, true, false}));
  EXPECT_EQ(status().disk_pages_failed, 2u);
}

TEST_F(DiskTierTest, ADiskThatCannotBeReadLosesNothing) {
  begin(2);
  store_as(client(), {1, 2});
  store_as(client(), {3, 4});
  image_.set_read_error(EIO);
  EXPECT_EQ(get({1, 2}), (list{false, false}));
  EXPECT_EQ(status().disk_pages_failed, 2u);
  image_.set_read_error(0);
  EXPECT_EQ(get({1, 2}), (list{true, true}));
}

TEST_F(DiskTierTest, WhatTheStoreHasLostIsForgotten) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  lose({1});
  EXPECT_EQ(get({1}), list{false});
  EXPECT_EQ(status().disk_pages, 1u);
  EXPECT_EQ(status().disk_pages_failed, 0u);
}

TEST_F(DiskTierTest, AReadThatHangsEndsAtItsDeadlineAndKeepsItsSlotUntilItReturns) {
  begin(2);
  store_as(client(), {1});
  store_as(client(), {2, 3});
  hang(batch_kind::read);
  const auto one = client();
  const auto answer = send_request_as<leased_pages>(one, node_, atom::locate_v, patient({1}));
  run();
  EXPECT_FALSE(answer.arrived());
  advance(1s);
  ASSERT_TRUE(answer.arrived());
  EXPECT_EQ(found(*answer.get()), list{false});
  store_->set_faults({});
  EXPECT_EQ(get({2, 3}).size(), 2u) << "the disk is used meanwhile";
  const auto failed = status().disk_pages_failed;
  store_->release();
  run();
  EXPECT_EQ(status().disk_pages_failed, failed);
  EXPECT_EQ(get({1}), list{true});
}

TEST_F(DiskTierTest, SeveralRequestsReadAtOnce) {
  begin(4);
  store_as(client(), {1, 2});
  store_as(client(), {3, 4, 5, 6});
  hang(batch_kind::read);
  const auto first = client();
  const auto second = client();
  const auto one = send_request_as<leased_pages>(first, node_, atom::locate_v, patient({1}));
  const auto two = send_request_as<leased_pages>(second, node_, atom::locate_v, patient({2}));
  run();
  EXPECT_TRUE(store_->release_one(store_fault::late));
  EXPECT_TRUE(store_->release_one(store_fault::late));
  run();
  EXPECT_EQ(found(*one.get()), list{true});
  EXPECT_EQ(found(*two.get()), list{true});
}

TEST_F(DiskTierTest, RemovingWaitsForTheWriteOfThePage) {
  begin(8);
  hang(batch_kind::write);
  store_as(client(), {1, 2});
  auto batch = key_batch{{key_of(1)}};
  const auto removed = send_request_as<page_totals>(client(), node_, atom::remove_v, batch);
  run();
  EXPECT_FALSE(removed.arrived());
  store_->release();
  run();
  EXPECT_EQ(removed.get()->pages, 1u);
  EXPECT_FALSE(is_on_disk(1));
  EXPECT_TRUE(is_on_disk(2));
}

TEST_F(DiskTierTest, AWriteThatReturnsTooLateLeavesNothing) {
  begin(8);
  hang(batch_kind::write);
  store_as(client(), {1});
  advance(limits::storage_timeout);
  EXPECT_EQ(status().disk_pages_failed, 1u);
  remove_as(client(), {1});
  store_->set_faults({});
  store_->release();
  run();
  EXPECT_FALSE(is_on_disk(1));
  EXPECT_EQ(status().disk_pages, 0u);
}

TEST_F(DiskTierTest, OthersAreAskedForWhatTheDiskHasNot) {
  auto asked = std::vector<page_key>{};
  fetcher_ = spawn([&asked](fetcher_actor::pointer) -> fetcher_actor::behavior_type {
    return {[&asked](atom::fetch, const page_fetch& wanted) {
      for (const auto& page : wanted.pages.list)
        asked.push_back(page.key);
      return atom::ok_v;
    }};
  });
  begin(2);
  store_as(client(), {1});
  store_as(client(), {2, 3});
  EXPECT_EQ(get({1, 4}), (list{true, false}));
  EXPECT_EQ(asked, std::vector{key_of(4)});
}

TEST_F(DiskTierTest, TheIndexKnowsWhatMemoryEvictedOnDisk) {
  begin(2);
  store_as(client(), {1, 2});
  EXPECT_FALSE(is_offered_on_disk(1)) << "it is in memory";
  EXPECT_EQ(locate_anywhere(1).size(), 1u);
  store_as(client(), {3});
  EXPECT_TRUE(is_offered_on_disk(1));
  EXPECT_TRUE(locate(1).empty()) << "for a reader of version 5";
  EXPECT_EQ(get({1}), list{true});
  EXPECT_FALSE(is_offered_on_disk(1)) << "it is in memory again";
  EXPECT_EQ(locate(1).size(), 1u);
  EXPECT_TRUE(is_offered_on_disk(2)) << "it made room";
}

TEST_F(DiskTierTest, APageThatLeftMemoryBeforeItWasWrittenIsAnnouncedWhenItIs) {
  begin(1);
  hang(batch_kind::write);
  store_as(client(), {1});
  remove_from_memory(1);
  EXPECT_TRUE(locate_anywhere(1).empty());
  store_->release();
  run();
  EXPECT_TRUE(is_offered_on_disk(1));
}

TEST_F(DiskTierTest, TheNextNodeAnnouncesWhatItsDiskHolds) {
  begin(8);
  store_as(client(), {1, 2, 3});
  restart(8);
  for (const auto number : {1, 2, 3})
    EXPECT_TRUE(is_offered_on_disk(number)) << number;
}

TEST_F(DiskTierTest, AnIndexThatHasForgottenHearsOfTheDiskToo) {
  begin(2);
  store_as(client(), {1, 2});
  store_as(client(), {3});
  stop(index_);
  start_index();
  advance(500ms);
  EXPECT_TRUE(is_offered_on_disk(1));
  EXPECT_EQ(locate(3).size(), 1u);
}

TEST_F(DiskTierTest, WhatTheDiskEvictsIsWithdrawn) {
  max_pages_ = 3;
  begin(1);
  const auto one = client();
  for (const auto number : {1, 2, 3, 4, 5})
    store_as(one, {static_cast<uint64_t>(number)});
  EXPECT_TRUE(locate_anywhere(1).empty());
  EXPECT_TRUE(locate_anywhere(2).empty());
  EXPECT_TRUE(is_offered_on_disk(3));
}

TEST_F(DiskTierTest, WhatTheDiskHasLostIsWithdrawnWhenSomebodyWantsIt) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  lose({1});
  EXPECT_TRUE(is_offered_on_disk(1));
  EXPECT_EQ(get({1}), list{false});
  EXPECT_TRUE(locate_anywhere(1).empty());
}

TEST_F(DiskTierTest, RemovedAndClearedPagesAreWithdrawnOnDiskToo) {
  begin(1);
  const auto one = client();
  store_as(one, {1});
  store_as(one, {2});
  store_as(one, {3});
  remove_as(one, {1});
  EXPECT_TRUE(locate_anywhere(1).empty());
  EXPECT_TRUE(is_offered_on_disk(2));
  EXPECT_TRUE(ask<page_totals>(segment_, atom::clear_v, namespace_pages{0}));
  run();
  EXPECT_TRUE(locate_anywhere(2).empty());
  EXPECT_TRUE(locate_anywhere(3).empty());
}

TEST_F(DiskTierTest, AMemberThatIsDrainedOffersNothingOnDisk) {
  begin(2);
  store_as(client(), {1, 2});
  store_as(client(), {3});
  const auto drained = ask<drain_report>(segment_, atom::drain_v, drain_request{});
  EXPECT_EQ(drained, (drain_report{0, 3})) << "page 3 is in both";
  for (const auto number : {1, 2, 3})
    EXPECT_TRUE(locate_anywhere(number).empty()) << number;
  caf::anon_send(segment_, atom::backup_v, key_batch{{key_of(1)}});
  run();
  EXPECT_TRUE(locate_anywhere(1).empty());
  EXPECT_TRUE(ask<drain_progress>(segment_, atom::resume_v, drain_request{}));
  run();
  for (const auto number : {1, 2, 3})
    EXPECT_TRUE(is_offered_on_disk(number)) << number;
}

TEST_F(DiskTierTest, AMemberThatCannotBeDrainedOffersItsMemoryOnly) {
  begin(2);
  store_as(client(), {1, 2});
  store_as(client(), {3});
  ask_value<page_totals>(segment_, atom::pin_v, page_pins{2, 0, {key_of(3)}});
  EXPECT_FALSE(ask<drain_report>(segment_, atom::drain_v, drain_request{}));
  EXPECT_TRUE(locate_anywhere(1).empty()) << "there is no room to bring it to";
  EXPECT_EQ(locate(3).size(), 1u);
  EXPECT_TRUE(ask<drain_progress>(segment_, atom::resume_v, drain_request{}));
  run();
  EXPECT_TRUE(is_offered_on_disk(1));
}

TEST_F(DiskTierTest, AReaderElsewhereHasPagesRecalled) {
  begin(2);
  store_as(client(), {1, 2});
  store_as(client(), {3, 4});
  const auto found = recall({1, 4, 9});
  ASSERT_EQ(found.replicas.size(), 3u);
  ASSERT_EQ(found.replicas[0].size(), 1u);
  const auto& at = found.replicas[0].front();
  EXPECT_EQ(at, locate(1).front());
  EXPECT_TRUE(is_page({place_status::present, at.offset, at.generation, at.length}, 1));
  EXPECT_EQ(found.replicas[1].size(), 1u) << "it stays in memory, as it is wanted";
  EXPECT_TRUE(found.replicas[2].empty());
  EXPECT_TRUE(recall({1}, 9).replicas[0].empty()) << "it is of another namespace";
}

TEST_F(DiskTierTest, ARecallEndsInTime) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  hang(batch_kind::read);
  const auto answer
    = send_request<placements>(segment_, atom::recall_v, page_recall{0, {key_of(1)}, 1000});
  run();
  EXPECT_FALSE(answer.arrived());
  advance(1s);
  ASSERT_TRUE(answer.arrived());
  EXPECT_TRUE(answer.get()->replicas[0].empty());
  store_->release();
  run();
}

TEST_F(DiskTierTest, AnOlderIndexHearsOfPagesInMemoryOnly) {
  begin(1);
  older_index_ = spawn(run_older_index, index_);
  advance(500ms);
  store_as(client(), {1});
  store_as(client(), {2});
  EXPECT_TRUE(locate_anywhere(1).empty());
  EXPECT_EQ(locate_anywhere(2).size(), 1u);
}

TEST_F(DiskTierTest, DrainingAnswersWhenAllIsWritten) {
  begin(8);
  store_as(client(), {1, 2});
  lose({1, 2});
  caf::anon_send(disk_, atom::backup_v, pages_to_write({1, 2}));
  EXPECT_TRUE(ask<atom::ok>(disk_, atom::drain_v));
  EXPECT_TRUE(is_on_disk(1) && is_on_disk(2));
}

} // namespace
} // namespace hicache::test
