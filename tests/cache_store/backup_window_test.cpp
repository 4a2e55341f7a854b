#include "cache/store/backup_window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace hicache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using end = backup_window::end;

constexpr auto usual = storage_traffic{};
constexpr auto page_limit = uint64_t{usual.batch_pages};

/// All pages well, or all up to one that failed with a code.
storage_outcome outcome(uint64_t count, uint64_t good = ~uint64_t{0}, ec code = ec::io_failure) {
  auto pages = std::vector<ec>(count, ec::none);
  std::fill(pages.begin() + static_cast<ptrdiff_t>(std::min(good, count)), pages.end(), code);
  return {std::move(pages)};
}

class BackupWindowTest : public testing::Test {
protected:
  std::vector<backup_window::batch> send_all(bool orders_writes = false) {
    auto sent = std::vector<backup_window::batch>{};
    while (const auto batch = window_.next(orders_writes))
      sent.push_back(*batch);
    return sent;
  }

  backup_window::verdict finish(const backup_window::batch& batch, uint64_t good = ~uint64_t{0},
                                ec code = ec::io_failure) {
    return window_.finish(batch, outcome(batch.count, good, code), false);
  }

  backup_window window_;
};

TEST_F(BackupWindowTest, ACommandWaitsForItsOwnBatchesUnlessTheStoreOrdersThem) {
  window_.enqueue(1, 3 * page_limit);
  EXPECT_EQ(send_all(false).size(), 1u);
  const auto rest = send_all(true);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].first, page_limit);
  EXPECT_EQ(rest[1].first, 2 * page_limit);
}

TEST_F(BackupWindowTest, OutcomesInAnyOrderCountFromTheFirstPageOn) {
  window_.enqueue(1, 3 * page_limit);
  const auto sent = send_all(true);
  finish(sent[2]);
  finish(sent[1], 7);
  EXPECT_THAT(window_.take_ends(), IsEmpty());
  const auto after = finish(sent[0]);
  EXPECT_EQ(after.pause, usual.backup_pause); // Known only now to be the first failure.
  EXPECT_FALSE(window_.next(true));
  window_.resume(window_.pauses());
  const auto again = send_all(true);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].first, page_limit + 7);
  finish(again[0]);
  finish(again[1]);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{1, 3 * page_limit}));
  EXPECT_TRUE(window_.is_idle());
}

TEST_F(BackupWindowTest, NothingOfACommandIsSentWhileBatchesBehindAFailureAreUnderWay) {
  window_.enqueue(1, 3 * page_limit);
  const auto sent = send_all(true);
  finish(sent[0], 1);
  window_.resume(window_.pauses());
  EXPECT_FALSE(window_.next(true)); // Their pages could be stored before the one that failed.
  finish(sent[1], 0);
  EXPECT_FALSE(window_.next(true));
  finish(sent[2], 0);
  EXPECT_EQ(send_all(true).front().first, 1u);
  EXPECT_EQ(window_.counters().storage_failures, 1u);
}

TEST_F(BackupWindowTest, ALateBatchEndsItsCommandAndTheOthersGoOn) {
  window_.enqueue(1, 2);
  window_.enqueue(2, 2);
  const auto sent = send_all();
  window_.finish(sent[0], outcome(2, 0, ec::deadline_exceeded), true);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{1, 0, true}));
  EXPECT_EQ(window_.counters().dropped_backups, 2u);
  finish(sent[1]);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{2, 2}));
  EXPECT_FALSE(window_.is_idle());
  window_.returned(sent[0]);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{1, 0}));
  EXPECT_TRUE(window_.is_idle());
}

TEST_F(BackupWindowTest, AStoreThatIsFullOrLeftOutEndsTheCommandAtOnce) {
  window_.enqueue(1, 4);
  window_.enqueue(2, 4);
  const auto sent = send_all();
  finish(sent[0], 1, ec::store_full);
  finish(sent[1], 3, ec::store_unavailable);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{1, 1}, end{2, 3}));
  EXPECT_EQ(window_.counters().dropped_backups, 1u);
  EXPECT_EQ(window_.counters().storage_failures, 0u);
}

TEST_F(BackupWindowTest, TheFirstCommandThatIsGivenUpIsWorthAWarning) {
  window_.enqueue(1, 1);
  for (auto i = 1u; i < usual.backup_attempts; ++i) {
    EXPECT_EQ(finish(send_all().front(), 0).pause, usual.backup_pause * (1 << (i - 1)));
    window_.resume(window_.pauses());
  }
  EXPECT_EQ(finish(send_all().front(), 0).warning, ec::io_failure);
  window_.enqueue(2, 1);
  EXPECT_EQ(finish(send_all().front(), 0).warning, std::nullopt);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{1, 0}, end{2, 0}));
}

TEST_F(BackupWindowTest, SizesAttemptsAndPausesAreThoseOfItsTraffic) {
  window_ = backup_window{{10, 2, 3, std::chrono::seconds{1}}};
  window_.enqueue(1, 25);
  window_.enqueue(2, 25);
  window_.enqueue(3, 25);
  auto sent = send_all();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].count, 10u);
  window_.drop(3);
  finish(sent[1], 1, ec::store_full);
  EXPECT_EQ(finish(sent[0], 0).pause, std::chrono::seconds{1});
  window_.resume(window_.pauses());
  EXPECT_EQ(finish(send_all().front(), 0).pause, std::chrono::seconds{2});
  window_.resume(window_.pauses());
  EXPECT_EQ(finish(send_all().front(), 0).warning, ec::io_failure);
  EXPECT_THAT(window_.take_ends(), ElementsAre(end{3, 0}, end{2, 1}, end{1, 0}));
}

TEST_F(BackupWindowTest, APauseThatWasReplacedMeansNothing) {
  window_.enqueue(1, 1);
  window_.enqueue(2, 1);
  const auto sent = send_all();
  finish(sent[0], 0);
  const auto first = window_.pauses();
  finish(sent[1], 0);
  window_.resume(first);
  EXPECT_FALSE(window_.next(false));
  window_.resume(window_.pauses());
  EXPECT_EQ(send_all().size(), 2u);
}

/// Whatever the store does, each command ends once and with no more pages than it stored, no page
/// is sent before its parent is stored (or sent, to a store that orders writes), and nothing stays
/// behind.
TEST_F(BackupWindowTest, EveryCommandEndsOnceWhateverTheStoreDoes) {
  for (auto seed = 0u; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    auto random = std::mt19937_64{seed};
    const auto orders = seed % 2 == 0;
    auto window = backup_window{};
    auto under_way = std::vector<backup_window::batch>{};
    auto late = std::vector<backup_window::batch>{};
    auto ended = std::multiset<operation_id>{};
    auto is_stored = std::map<operation_id, std::vector<bool>>{};
    const auto leading = [&](operation_id id) {
      const auto& pages = is_stored[id];
      return static_cast<uint64_t>(std::ranges::find(pages, false) - pages.begin());
    };
    const auto take = [&](auto& from) {
      std::swap(from[random() % from.size()], from.back());
      const auto batch = from.back();
      from.pop_back();
      return batch;
    };
    auto issued = operation_id{0};
    for (auto round = 0; round < 400 || !window.is_idle(); ++round) {
      ASSERT_LT(round, 5000);
      if (round < 400 && random() % 3 == 0)
        window.enqueue(++issued, 1 + random() % (4 * page_limit));
      if (random() % 10 == 0)
        window.drop(1 + random() % (issued + 1));
      if (random() % 2 == 0)
        window.resume(window.pauses());
      while (const auto batch = window.next(orders)) {
        for (const auto& other : under_way)
          ASSERT_TRUE(orders || other.id != batch->id);
        ASSERT_TRUE(orders || batch->first <= leading(batch->id));
        under_way.push_back(*batch);
      }
      ASSERT_LE(under_way.size(), usual.batches_in_flight);
      if (!under_way.empty() && random() % 4 != 0) {
        const auto batch = take(under_way);
        const auto is_late = random() % 16 == 0;
        const auto good = random() % 3 == 0 ? random() % batch.count : batch.count;
        window.finish(batch, outcome(batch.count, is_late ? 0 : good), is_late);
        if (is_late)
          late.push_back(batch);
        auto& pages = is_stored[batch.id];
        pages.resize(4 * page_limit);
        for (auto i = batch.first; !is_late && i < batch.first + good; ++i)
          pages[i] = true;
      }
      if (!late.empty() && random() % 4 == 0)
        window.returned(take(late));
      for (const auto& each : window.take_ends()) {
        ASSERT_LE(each.stored, leading(each.id));
        if (!each.is_in_quarantine)
          ended.insert(each.id);
      }
    }
    EXPECT_TRUE(under_way.empty() && late.empty());
    EXPECT_EQ(ended.size(), issued);
    EXPECT_EQ(std::set<operation_id>(ended.begin(), ended.end()).size(), issued);
  }
}

} // namespace
} // namespace hicache
