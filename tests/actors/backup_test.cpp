#include "actors/backup.hpp"
#include "base/limits.hpp"
#include "tests/actors/fakes.hpp"

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto page_bytes = uint64_t{512};
constexpr auto timeout = caf::timespan{std::chrono::seconds{3}};

class BackupTest : public actor_test {
protected:
  BackupTest() {
    storage_ = spawn(fake_storage, held_);
    tree_ = spawn(recorder, log_);
    backup_ = spawn(backup, caf::actor_cast<storage_actor>(storage_), timeout, page_bytes);
  }

  void command(operation_id id, uint64_t pages) {
    send_as(tree_, backup_, atom::backup_v,
            backup_command{id, keys_of(100, pages), keys_of(99, pages),
                           page_run(1, static_cast<uint32_t>(pages))});
    run();
  }

  /// Answers the oldest batch; page `failed` of it fails.
  void answer(std::optional<uint64_t> failed = {}, ec code = ec::io_failure) {
    ASSERT_FALSE(held_->empty());
    auto request = std::move(held_->front());
    held_->pop_front();
    auto outcome = storage_outcome{std::vector<ec>(request.batch.count, ec::none)};
    if (failed)
      outcome.pages[*failed] = code;
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
    EXPECT_EQ(request.batch.host_first, request.batch.first);
    EXPECT_EQ((*request.batch.parents)[1], (*request.batch.keys)[0]);
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

TEST_F(BackupTest, AfterAFailedPageTheRestOfItsCommandIsGivenUp) {
  command(1, 300);
  command(2, 1);
  answer();
  answer(uint64_t{5});
  ASSERT_EQ(log_->done.size(), 1u); // Done all the same: L3 lacks pages, nothing else.
  EXPECT_TRUE(log_->done[0].ok);
  ASSERT_EQ(held_->size(), 1u);
  EXPECT_EQ(held_->front().batch.count, 1u); // The next command, not the third batch.
  answer();
  EXPECT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(counters().bytes_l2_to_l3, (128 + 5 + 1) * page_bytes);
  EXPECT_EQ(counters().storage_failures, 1u);
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
  EXPECT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(counters().storage_failures, 2u);
  EXPECT_EQ(counters().bytes_l2_to_l3, 0u);
}

} // namespace
} // namespace hicache
