#include "actors/backup.hpp"
#include "base/limits.hpp"
#include "tests/actors/fakes.hpp"

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto page_bytes = uint64_t{512};
constexpr auto timeout = caf::timespan{std::chrono::seconds{3}};
constexpr auto usual = storage_traffic{};

class BackupTest : public actor_test {
protected:
  explicit BackupTest(bool orders_writes = false, const storage_traffic& traffic = usual) {
    storage_ = spawn(fake_storage, held_, orders_writes);
    tree_ = spawn(recorder, log_);
    backup_ = spawn(backup, caf::actor_cast<storage_actor>(storage_),
                    backup_options{timeout, page_bytes, traffic});
    run(); // The store says whether it orders writes.
  }

  void command(operation_id id, uint64_t pages) {
    send_as(tree_, backup_, atom::backup_v,
            backup_command{id, names_of(100, pages), page_run(1, static_cast<uint32_t>(pages))});
    run();
  }

  /// Answers the oldest batch; page `failed` of it fails.
  void answer(std::optional<uint64_t> failed = {}, ec code = ec::io_failure,
              uint64_t left_to_others = 0) {
    ASSERT_FALSE(held_->empty());
    auto request = std::move(held_->front());
    held_->pop_front();
    auto outcome = storage_outcome{std::vector<ec>(request.batch.count, ec::none), left_to_others};
    if (failed)
      outcome.pages[*failed] = code;
    outcome.lost = lost_;
    tell(storage_, errand{[request, outcome](caf::event_based_actor*) mutable {
           request.promise.deliver(outcome);
         }});
  }

  rank_counters counters() { return ask_value<rank_counters>(backup_, atom::counters_v); }

  std::shared_ptr<held_requests> held_ = std::make_shared<held_requests>();
  std::shared_ptr<recording> log_ = std::make_shared<recording>();
  caf::actor storage_;
  caf::actor tree_;
  backup_actor backup_;
  /// What the store says with its answers.
  time_point lost_{};
};

TEST_F(BackupTest, LongCommandsGoInBatchesOneAfterTheOther) {
  command(1, 300);
  auto sizes = std::vector<uint64_t>{};
  auto firsts = std::vector<uint64_t>{};
  while (!held_->empty()) {
    ASSERT_EQ(held_->size(), 1u); // Parents are there before their children are sent.
    const auto& request = held_->front();
    EXPECT_EQ(request.verb, "set");
    EXPECT_EQ(request.timeout, timeout);
    EXPECT_EQ(request.batch.l2_first, request.batch.first);
    EXPECT_EQ(request.batch.names->before(1), key_of(100));
    sizes.push_back(request.batch.count);
    firsts.push_back(request.batch.first);
    EXPECT_TRUE(log_->done.empty());
    answer();
  }
  EXPECT_EQ(sizes, (std::vector<uint64_t>{128, 128, 44}));
  EXPECT_EQ(firsts, (std::vector<uint64_t>{0, 128, 256}));
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].kind, operation_kind::backup);
  EXPECT_EQ(log_->done[0].id, 1u);
  EXPECT_EQ(counters().bytes_l2_to_l3, 300 * page_bytes);
}

TEST_F(BackupTest, CommandsAreDoneInOrder) {
  for (auto id = operation_id{1}; id <= 4; ++id)
    command(id, 2);
  for (auto id = operation_id{1}; id <= 4; ++id) {
    EXPECT_EQ(log_->done.size(), id - 1);
    answer();
    ASSERT_EQ(log_->done.size(), id);
    EXPECT_EQ(log_->done.back().id, id);
  }
  EXPECT_TRUE(held_->empty());
}

TEST_F(BackupTest, CommandsAreWrittenSideBySide) {
  for (auto id = operation_id{1}; id <= 6; ++id)
    command(id, 200);
  EXPECT_EQ(held_->size(), usual.batches_in_flight);
  for (const auto& request : *held_)
    EXPECT_EQ(request.batch.first, 0u); // Of each command one batch.
  for (auto i = 0; i < 12; ++i)
    answer();
  EXPECT_EQ(log_->done.size(), 6u);
  EXPECT_EQ(counters().bytes_l2_to_l3, 1200 * page_bytes);
}

class OrderedBackupTest : public BackupTest {
protected:
  OrderedBackupTest() : BackupTest(true) {}
};

TEST_F(OrderedBackupTest, BatchesOfACommandFollowEachOther) {
  command(1, 700);
  ASSERT_EQ(held_->size(), usual.batches_in_flight);
  for (auto i = size_t{0}; i < held_->size(); ++i)
    EXPECT_EQ((*held_)[i].batch.first, i * limits::storage_batch_pages);
  answer(uint64_t{5});
  for (auto i = 0; i < 3; ++i)
    answer(uint64_t{0}); // The store fails what follows a page that failed.
  EXPECT_TRUE(held_->empty());
  EXPECT_EQ(counters().storage_failures, 1u);
  advance(usual.backup_pause);
  ASSERT_EQ(held_->size(), usual.batches_in_flight);
  EXPECT_EQ(held_->front().batch.first, 5u);
  while (!held_->empty())
    answer();
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].stored, 700u);
}

class SmallBackupTest : public BackupTest {
protected:
  SmallBackupTest() : BackupTest(true, {10, 2, 2, std::chrono::seconds{7}}) {}
};

TEST_F(SmallBackupTest, WritesAreAsItsTrafficSays) {
  command(1, 25);
  ASSERT_EQ(held_->size(), 2u);
  EXPECT_EQ(held_->front().batch.count, 10u);
  answer(uint64_t{0});
  answer(uint64_t{0});
  EXPECT_TRUE(held_->empty());
  advance(std::chrono::seconds{6});
  EXPECT_TRUE(held_->empty());
  advance(std::chrono::seconds{1});
  ASSERT_EQ(held_->size(), 2u);
  answer(uint64_t{0});
  answer(uint64_t{0});
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].stored, 0u);
}

TEST_F(BackupTest, FailedPageIsTriedAgainBeforeItsChildren) {
  command(1, 300);
  command(2, 1);
  answer();
  answer(); // The second command depends on nothing of the first.
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].id, 2u);
  answer(uint64_t{5});
  EXPECT_TRUE(held_->empty());
  advance(usual.backup_pause);
  ASSERT_EQ(held_->size(), 1u);
  EXPECT_EQ(held_->front().batch.first, 133u); // From the failed page on.
  answer();
  answer();
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(log_->done[1].stored, 300u);
  EXPECT_EQ(counters().bytes_l2_to_l3, 301 * page_bytes);
  EXPECT_EQ(counters().storage_failures, 1u);
  EXPECT_EQ(counters().backup_retries, 1u);
}

TEST_F(BackupTest, TellsWithEachEndTheLatestLossSoFar) {
  const auto at = [](int64_t seconds) { return time_point{std::chrono::seconds{seconds}}; };
  for (const auto id : {operation_id{1}, operation_id{2}, operation_id{3}}) {
    command(id, 4);
    lost_ = at(id == 2 ? 7 : 5);
    answer();
  }
  ASSERT_EQ(log_->done.size(), 3u);
  EXPECT_EQ(log_->done[0].lost, at(5));
  EXPECT_EQ(log_->done[1].lost, at(7));
  EXPECT_EQ(log_->done[2].lost, at(7));
}

TEST_F(BackupTest, PausesGrowUntilItIsGivenUp) {
  command(1, 4);
  auto pause = caf::timespan{usual.backup_pause};
  for (auto attempt = 1u; attempt < usual.backup_attempts; ++attempt, pause *= 2) {
    answer(uint64_t{attempt == 1 ? 1u : 0u});
    advance(pause - std::chrono::milliseconds{1});
    ASSERT_TRUE(held_->empty()) << attempt;
    advance(std::chrono::milliseconds{1});
    ASSERT_EQ(held_->size(), 1u) << attempt;
  }
  EXPECT_TRUE(log_->done.empty());
  answer(uint64_t{0});
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].stored, 1u);
  EXPECT_TRUE(log_->done[0].ok); // L3 lacks pages, nothing else.
  EXPECT_EQ(counters().dropped_backups, 3u);
}

TEST_F(BackupTest, AStoreThatGoesOnFailingIsTriedOncePerCommand) {
  command(1, 1);
  for (auto attempt = 1u; attempt < usual.backup_attempts; ++attempt) {
    answer(uint64_t{0});
    advance(std::chrono::seconds{2});
  }
  answer(uint64_t{0});
  command(2, 1);
  answer(uint64_t{0});
  EXPECT_EQ(log_->done.size(), 2u);
  command(3, 1);
  answer();
  command(4, 1);
  answer(uint64_t{0});
  EXPECT_EQ(log_->done.size(), 3u); // It works again, so failures are worth a pause again.
}

TEST_F(BackupTest, AWriteThatDoesNotReturnEndsItsCommandAndKeepsThePages) {
  command(1, 4);
  command(2, 4);
  auto late = std::move(held_->front());
  held_->pop_front();
  tell(storage_, errand{[late](caf::event_based_actor*) mutable {
         late.promise.deliver(storage_outcome{std::vector<ec>(4, ec::deadline_exceeded), 0, 7});
       }});
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].id, 1u);
  EXPECT_TRUE(log_->done[0].is_in_quarantine);
  EXPECT_EQ(counters().dropped_backups, 4u);
  const auto asked = std::ranges::find(*held_, "drain", &held_request::verb);
  ASSERT_NE(asked, held_->end());
  auto drain = std::move(*asked);
  held_->erase(asked);
  answer(); // The next command did not wait for it.
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(log_->done[1].id, 2u);
  EXPECT_EQ(log_->done[1].stored, 4u);
  const auto drained = send_request<atom::ok>(backup_, atom::drain_v);
  run();
  EXPECT_FALSE(drained.arrived());
  tell(storage_,
       errand{[drain](caf::event_based_actor*) mutable { drain.promise.deliver(atom::ok_v); }});
  ASSERT_EQ(log_->done.size(), 3u);
  EXPECT_EQ(log_->done[2].id, 1u);
  EXPECT_FALSE(log_->done[2].is_in_quarantine);
  EXPECT_TRUE(drained.arrived());
}

TEST_F(BackupTest, AStoreThatIsLeftAloneIsNotTriedAgain) {
  command(1, 4);
  answer(uint64_t{0}, ec::store_unavailable);
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(counters().dropped_backups, 4u);
  EXPECT_EQ(counters().storage_failures, 0u);
}

TEST_F(BackupTest, DroppedCommandsEndAtOnceOrWithTheirBatch) {
  command(1, 300);
  for (auto id = operation_id{2}; id <= 5; ++id)
    command(id, 2);
  tell(backup_, atom::drop_v, drop_command{5}); // It has not begun.
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].id, 5u);
  EXPECT_EQ(log_->done[0].stored, 0u);
  tell(backup_, atom::drop_v, drop_command{1});
  EXPECT_EQ(log_->done.size(), 1u); // The store still reads its pages.
  answer();
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(log_->done[1].id, 1u);
  EXPECT_EQ(log_->done[1].stored, 128u);
  answer(uint64_t{0});
  tell(backup_, atom::drop_v, drop_command{2}); // It waits to be tried again.
  ASSERT_EQ(log_->done.size(), 3u);
  answer();
  answer();
  advance(std::chrono::seconds{10});
  EXPECT_TRUE(held_->empty());
  tell(backup_, atom::drop_v, drop_command{2}); // Over already.
  EXPECT_EQ(log_->done.size(), 5u);
  EXPECT_EQ(counters().dropped_backups, 2u + 172 + 2);
}

TEST_F(BackupTest, IsDrainedWhenTheLastCommandIsDone) {
  command(1, 2);
  const auto drained = send_request<atom::ok>(backup_, atom::drain_v);
  run();
  EXPECT_FALSE(drained.arrived());
  answer();
  EXPECT_TRUE(drained.arrived());
}

TEST_F(BackupTest, WithoutAStoreNothingIsStored) {
  tell(backup_, atom::attach_v, caf::strong_actor_ptr{});
  command(1, 2);
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].stored, 0u);
}

TEST_F(BackupTest, PagesThatAnotherRankWritesAreDoneButNotCounted) {
  command(1, 4);
  answer({}, ec::none, 3);
  EXPECT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(counters().bytes_l2_to_l3, page_bytes);
}

TEST_F(BackupTest, FullStoreIsNoFailure) {
  command(1, 4);
  answer(uint64_t{2}, ec::store_full);
  EXPECT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(counters().storage_failures, 0u);
}

TEST_F(BackupTest, CommandsEndThoughTheStorageIsDead) {
  stop(storage_);
  command(1, 200);
  command(2, 3);
  for (auto attempt = 1u; attempt < usual.backup_attempts; ++attempt)
    advance(std::chrono::seconds{2});
  EXPECT_EQ(log_->done.size(), 2u);
  // With the first command's last attempt the second one is given up, too.
  EXPECT_EQ(counters().storage_failures, 2 * usual.backup_attempts - 1);
  EXPECT_EQ(counters().bytes_l2_to_l3, 0u);
}

} // namespace
} // namespace hicache
