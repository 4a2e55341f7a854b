// What a segment tells a shard of the index that is slow, forgets, or is lost for a while.

#include "base/limits.hpp"
#include "hicache/caf_error.hpp"
#include "tests/actors/segment_fixture.hpp"

#include <chrono>
#include <deque>
#include <set>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

/// An index that answers announcements when the test says so.
struct slow_index {
  std::vector<member_info> mounts;
  /// It remembers members that mount anew.
  bool resumes = false;
  std::vector<published_pages> news;
  std::vector<withdrawn_pages> withdrawn;
  std::deque<caf::response_promise> waiting;
};

caf::behavior run_slow_index(caf::event_based_actor* self, std::shared_ptr<slow_index> log) {
  return {
    [log](atom::mount, const member_info& x) {
      log->mounts.push_back(x);
      auto view = membership{true, 10000, 0};
      view.resumed = log->resumes && x.resumes != 0;
      return view;
    },
    [](atom::tick, const heartbeat&) {
      return membership{true, 10000, 0};
    },
    [self, log](atom::publish, const published_pages& x) {
      log->news.push_back(x);
      log->waiting.push_back(self->make_response_promise());
      return log->waiting.back();
    },
    [log](atom::withdraw, const withdrawn_pages& x) {
      log->withdrawn.push_back(x);
      return membership{true, 10000, 0};
    },
    [self](const errand& x) { x.run(self); },
  };
}

class BlockReportTest : public SegmentTest {
protected:
  /// A segment with more pages than one message takes, of which the index has none yet.
  void start_with(uint32_t pages) {
    start_segment(pages + 2);
    auto keys = std::vector<uint64_t>(pages);
    for (auto i = uint32_t{0}; i < pages; ++i)
      keys[i] = 1 + i;
    store(keys);
    slow_ = spawn(run_slow_index, log_);
    index_ = caf::actor_cast<index_actor>(slow_);
    advance(1s);
  }

  void answer() {
    ASSERT_FALSE(log_->waiting.empty());
    auto promise = std::move(log_->waiting.front());
    log_->waiting.pop_front();
    tell(slow_, errand{[promise](caf::event_based_actor*) mutable {
           promise.deliver(membership{true, 10000, 0});
         }});
  }

  void fail_publish() {
    ASSERT_FALSE(log_->waiting.empty());
    auto promise = std::move(log_->waiting.front());
    log_->waiting.pop_front();
    tell(slow_, errand{[promise](caf::event_based_actor*) mutable {
           promise.deliver(to_caf({ec::peer_unreachable, "the shard is busy"}));
         }});
  }

  void answer_all() {
    while (!log_->waiting.empty())
      answer();
  }

  std::shared_ptr<slow_index> log_ = std::make_shared<slow_index>();
  caf::actor slow_;
};

TEST_F(BlockReportTest, GoesInBatchesOneAfterTheOther) {
  constexpr auto pages = static_cast<uint32_t>(limits::index_batch_keys) + 10;
  start_with(pages);
  ASSERT_EQ(log_->news.size(), 1u);
  EXPECT_EQ(log_->news[0].pages.size(), limits::index_batch_keys);
  answer();
  ASSERT_EQ(log_->news.size(), 2u);
  EXPECT_EQ(log_->news[1].pages.size(), 10u);
  answer();
  EXPECT_EQ(log_->news.size(), 2u);
}

TEST_F(BlockReportTest, PagesPublishedMeanwhileFollow) {
  start_with(10);
  ASSERT_EQ(log_->news.size(), 1u);
  store({500}); // Answered at once: the report will see to it.
  store({501});
  tell(segment_, atom::remove_v, keys_of(501, 1));
  tell(segment_, atom::remove_v, keys_of(1, 1));
  store({502, 503}); // In the slots of 501 and 1: one before and one behind the report.
  EXPECT_EQ(log_->news.size(), 1u);
  answer_all();
  auto announced = std::set<page_key>{};
  for (const auto& news : log_->news)
    for (const auto& page : news.pages)
      announced.insert(page.key);
  for (const auto key : {500, 502, 503})
    EXPECT_TRUE(announced.contains(key_of(static_cast<uint64_t>(key)))) << key;
  EXPECT_FALSE(announced.contains(key_of(501)));
}

TEST_F(BlockReportTest, GoesOnWhereItWasConfirmed) {
  log_->resumes = true;
  start_with(2 * static_cast<uint32_t>(limits::index_batch_keys) + 10);
  answer();
  ASSERT_EQ(log_->news.size(), 2u);
  fail_publish();
  EXPECT_EQ(index_lost_, 1);
  advance(3s);
  ASSERT_EQ(log_->mounts.size(), 2u);
  EXPECT_EQ(log_->mounts[1].resumes, log_->mounts[0].epoch);
  ASSERT_EQ(log_->news.size(), 3u);
  EXPECT_EQ(log_->news[2].epoch, log_->mounts[1].epoch);
  EXPECT_EQ(log_->news[2].pages, log_->news[1].pages) << "the batch that was not confirmed";
  answer_all();
  ASSERT_EQ(log_->news.size(), 4u);
  EXPECT_EQ(log_->news[3].pages.size(), 10u);
}

TEST_F(BlockReportTest, BeginsAnewAtAShardThatHasForgotten) {
  start_with(static_cast<uint32_t>(limits::index_batch_keys) + 10);
  answer();
  fail_publish();
  advance(3s);
  ASSERT_EQ(log_->news.size(), 3u);
  EXPECT_EQ(log_->news[2].pages, log_->news[0].pages);
}

TEST_F(BlockReportTest, WhatChangesWhileAShardIsLostIsAllThatItHearsOfLater) {
  log_->resumes = true;
  start_with(10);
  answer_all();
  log_->news.clear();
  const auto slots = reserve({500, 501});
  const auto stored = send_publish(slots);
  run();
  fail_publish(); // The shard may have heard of it.
  EXPECT_TRUE(stored.arrived());
  tell(segment_, atom::remove_v, keys_of(501, 1));
  tell(segment_, atom::remove_v, keys_of(1, 1));
  store({502});
  EXPECT_EQ(log_->news.size(), 1u);
  EXPECT_TRUE(log_->withdrawn.empty());
  advance(3s);
  ASSERT_EQ(log_->news.size(), 2u);
  auto keys = std::set<page_key>{};
  for (const auto& page : log_->news[1].pages)
    keys.insert(page.key);
  EXPECT_EQ(keys, (std::set{key_of(500), key_of(502)}));
  ASSERT_EQ(log_->withdrawn.size(), 1u);
  const auto& gone = log_->withdrawn[0].keys;
  EXPECT_EQ((std::set<page_key>{gone.begin(), gone.end()}), (std::set{key_of(1), key_of(501)}));
  EXPECT_EQ(log_->withdrawn[0].epoch, log_->mounts[1].epoch);
}

TEST_F(BlockReportTest, IsWholeWhenMoreChangesThanIsNoted) {
  log_->resumes = true;
  constexpr auto pages = static_cast<uint32_t>(limits::unsettled_keys) + 1;
  start_with(pages);
  answer_all();
  const auto stored = send_publish(reserve({1'000'000}));
  run();
  fail_publish();
  EXPECT_TRUE(stored.arrived());
  tell(segment_, atom::remove_v, keys_of(1, pages));
  log_->mounts.clear();
  advance(3s);
  ASSERT_EQ(log_->mounts.size(), 1u);
  EXPECT_EQ(log_->mounts[0].resumes, 0u);
}

TEST_F(BlockReportTest, PageEvictedBehindTheReportIsWithdrawnAfterIt) {
  start_with(10);
  tell(segment_, atom::remove_v, keys_of(3, 1));
  ASSERT_EQ(log_->withdrawn.size(), 1u);
  EXPECT_EQ(log_->withdrawn[0].keys, std::vector<page_key>{key_of(3)});
  EXPECT_EQ(log_->withdrawn[0].epoch, log_->news[0].epoch);
}

} // namespace
} // namespace hicache
