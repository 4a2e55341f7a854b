#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "base/limits.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/support/manual_clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

/// A store that does what the test says at every call and then answers well.
class scripted_backend final : public blocking_store {
public:
  explicit scripted_backend(std::function<void()> script) : script_(std::move(script)) {}

  std::string name() const override { return "scripted"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
    script_();
    return std::vector<bool>(keys.size(), true);
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
    script_();
    return std::vector<result<void>>(pages.size());
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
    script_();
    return std::vector<result<void>>(pages.size());
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
    script_();
    return std::vector<result<void>>(keys.size());
  }

  backend_health health() override { return {}; }

private:
  std::function<void()> script_;
};

/// Lets a store's call wait until the test opens it, and the test wait until a call is there.
struct gate {
  std::promise<void> entered;
  std::promise<void> released;
  std::shared_future<void> open = released.get_future().share();
  std::atomic<int> calls{0};

  std::unique_ptr<blocking_store> backend() {
    return std::make_unique<scripted_backend>([this] {
      if (calls++ == 0)
        entered.set_value();
      open.wait();
    });
  }
};

const auto keys = std::vector{key_of(1), key_of(2)};

/// For calls that a test has let go.
constexpr auto no_limit = std::chrono::hours{1};

/// All four kinds of a batch of two pages; answers are recorded.
struct answers {
  std::vector<std::vector<error>> found;
  std::vector<std::vector<error>> pages;

  void submit_all(storage_queue& queue) {
    const auto record = [this](const auto& done) { pages.push_back(errors_of(done)); };
    queue.lookup(keys, no_deadline, [this](const auto& done) { found.push_back(errors_of(done)); });
    queue.read(std::vector<page_read>{{keys[0], {}}, {keys[1], {}}}, no_deadline, record, {});
    queue.write(std::vector<page_write>{{keys[0], {}, {}}, {keys[1], {}, {}}}, no_deadline, record);
    queue.remove(keys, no_deadline, record);
  }

  void expect_all(const error& page) const {
    EXPECT_THAT(found, ElementsAre(ElementsAre(page, page)));
    EXPECT_THAT(pages, testing::AllOf(testing::SizeIs(3), testing::Each(ElementsAre(page, page))));
  }
};

TEST(StorageQueueTest, WithoutThreadsABatchRunsOnTheCaller) {
  auto runner = std::thread::id{};
  auto queue = storage_queue{
    std::make_unique<scripted_backend>([&] { runner = std::this_thread::get_id(); }), 0};
  auto heard = answers{};
  heard.submit_all(queue);
  heard.expect_all({});
  EXPECT_EQ(runner, std::this_thread::get_id());
}

TEST(StorageQueueTest, WithoutThreadsTheEndWaitsForACallOnAnotherThread) {
  auto gate = test::gate{};
  auto answered = false;
  auto queue = storage_queue{gate.backend(), 0};
  auto caller
    = std::jthread{[&] { queue.lookup(keys, no_deadline, [&](const auto&) { answered = true; }); }};
  gate.entered.get_future().wait();
  EXPECT_FALSE(queue.close(1ms)) << "it is still in the store";
  gate.released.set_value();
  caller.join();
  EXPECT_FALSE(answered) << "it was abandoned";
}

TEST(StorageQueueTest, OneWorkerAnswersInOrder) {
  auto order = std::vector<int>{};
  {
    auto last = std::promise<void>{};
    auto queue = storage_queue{std::make_unique<scripted_backend>([] {}), 1};
    for (auto i = 0; i < 100; ++i)
      queue.lookup(keys, no_deadline, [&, i](auto) {
        order.push_back(i);
        if (i == 99)
          last.set_value();
      });
    last.get_future().wait();
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(StorageQueueTest, TwoWorkersRunTwoBatchesAtOnce) {
  // Each batch waits for the other one, so one worker alone would never finish.
  auto both = std::promise<void>{};
  auto met = both.get_future().share();
  auto inside = std::atomic<int>{0};
  auto queue = storage_queue{std::make_unique<scripted_backend>([&] {
                               if (++inside == 2)
                                 both.set_value();
                               met.wait();
                             }),
                             2};
  auto done = std::array<std::promise<void>, 2>{};
  for (auto& promise : done)
    queue.lookup(keys, no_deadline, [&](auto) { promise.set_value(); });
  for (auto& promise : done)
    promise.get_future().wait();
}

TEST(StorageQueueTest, RefusesMoreBatchesThanItsBound) {
  auto gate = test::gate{};
  auto refused = answers{};
  auto answered = std::atomic<size_t>{0};
  {
    auto queue = storage_queue{gate.backend(), 1};
    queue.lookup(keys, no_deadline, [&](auto) { ++answered; });
    gate.entered.get_future().wait();
    for (auto i = size_t{0}; i < limits::storage_queue_batches; ++i)
      queue.lookup(keys, no_deadline, [&](auto) { ++answered; });
    EXPECT_EQ(answered, 0u);
    refused.submit_all(queue);
    gate.released.set_value();
  }
  EXPECT_EQ(answered, limits::storage_queue_batches + 1);
  refused.expect_all(error{ec::limit_reached, "too many batches wait for scripted"});
}

/// Reads well and wants small batches.
class small_backend final : public blocking_store {
public:
  std::string name() const override { return "small"; }
  store_capabilities capabilities() const override { return {.preferred_batch = 2}; }
  std::vector<bool> exists(std::span<const page_key> list, time_point) override {
    return std::vector<bool>(list.size());
  }
  std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
    auto outcomes = std::vector<result<void>>(pages.size());
    outcomes.back() = fail(ec::not_found);
    return outcomes;
  }
  std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
    return std::vector<result<void>>(pages.size());
  }
  std::vector<result<void>> remove(std::span<const page_key> list, time_point) override {
    return std::vector<result<void>>(list.size());
  }
  backend_health health() override { return {}; }
};

TEST(StorageQueueTest, AReadIsReportedInPartsOfTheStoresSize) {
  auto queue = storage_queue{std::make_unique<small_backend>(), 0};
  auto reported = std::vector<std::pair<size_t, std::vector<error>>>{};
  auto done = std::vector<error>{};
  queue.read(
    std::vector<page_read>(5), no_deadline, [&](const auto& all) { done = errors_of(all); },
    [&](size_t first, std::span<const result<void>> part) {
      EXPECT_TRUE(done.empty());
      reported.emplace_back(first, errors_of(std::vector<result<void>>{part.begin(), part.end()}));
    });
  const auto gone = error{ec::not_found, {}};
  EXPECT_THAT(reported, ElementsAre(testing::Pair(0, ElementsAre(error{}, gone)),
                                    testing::Pair(2, ElementsAre(error{}, gone))));
  EXPECT_THAT(done, ElementsAre(error{}, gone, error{}, gone, gone));
}

TEST(StorageQueueTest, AListIsMadeOnTheWorker) {
  auto queue = storage_queue{std::make_unique<small_backend>(), 1};
  auto maker = std::promise<std::thread::id>{};
  queue.lookup({2,
                [&] {
                  maker.set_value(std::this_thread::get_id());
                  return keys;
                }},
               no_deadline, [](const auto&) {});
  EXPECT_NE(maker.get_future().get(), std::this_thread::get_id());
}

TEST(StorageQueueTest, AStoreThatThrowsHasFailedItsBatchAndNothingElse) {
  auto mode = 0;
  auto queue = storage_queue{std::make_unique<scripted_backend>([&] {
                               if (mode == 0)
                                 throw std::runtime_error{"the disk is on fire"};
                               if (mode == 1)
                                 throw 42;
                             }),
                             0};
  auto standard = answers{};
  standard.submit_all(queue);
  standard.expect_all(error{ec::io_failure, "scripted threw: the disk is on fire"});
  mode = 1;
  auto other = answers{};
  other.submit_all(queue);
  other.expect_all(error{ec::io_failure, "scripted threw: an unknown exception"});
  mode = 2;
  auto good = answers{};
  good.submit_all(queue);
  good.expect_all({});
}

TEST(StorageQueueTest, AWorkerSurvivesAStoreThatThrows) {
  auto calls = std::atomic<int>{0};
  auto queue = storage_queue{std::make_unique<scripted_backend>([&] {
                               if (calls++ == 0)
                                 throw std::runtime_error{"once"};
                             }),
                             1};
  auto first = std::promise<std::vector<error>>{};
  auto second = std::promise<std::vector<error>>{};
  queue.lookup(keys, no_deadline, [&](const auto& found) { first.set_value(errors_of(found)); });
  queue.lookup(keys, no_deadline, [&](const auto& found) { second.set_value(errors_of(found)); });
  const auto failed = error{ec::io_failure, "scripted threw: once"};
  EXPECT_THAT(first.get_future().get(), ElementsAre(failed, failed));
  EXPECT_THAT(second.get_future().get(), ElementsAre(error{}, error{}));
}

TEST(StorageQueueTest, TheEndAnswersWaitingBatchesAndWaitsForTheRunningOne) {
  auto gate = test::gate{};
  auto running = std::vector<error>{};
  auto waiting = answers{};
  {
    auto queue = storage_queue{gate.backend(), 1};
    queue.lookup(keys, no_deadline, [&](const auto& found) { running = errors_of(found); });
    gate.entered.get_future().wait();
    waiting.submit_all(queue);
    // The running batch can end only after the destructor has refused one that waits.
    queue.lookup(keys, no_deadline, [&](const auto& found) {
      EXPECT_EQ(code_of(found[0]), ec::stopping);
      gate.released.set_value();
    });
  }
  EXPECT_THAT(running, ElementsAre(error{}, error{}));
  waiting.expect_all(error{ec::stopping, {}});
  EXPECT_EQ(gate.calls, 1);
}

// -- the order of batches that wait -------------------------------------------

/// A queue whose only worker is kept busy while batches are submitted.
class StorageQueueOrderTest : public testing::Test {
protected:
  StorageQueueOrderTest() {
    queue_.lookup(keys, no_deadline, [](const auto&) {});
    gate_.entered.get_future().wait();
  }

  /// Notes that a batch is answered.
  auto note(const std::string& what) {
    return [this, what](const auto&) { order_.push_back(what); };
  }

  void read(const std::string& what, std::chrono::hours deadline) {
    queue_.read(std::vector<page_read>(1), time_point{deadline}, note(what), {});
  }

  void write(const std::string& what, std::chrono::hours deadline) {
    queue_.write(std::vector<page_write>(1), time_point{deadline}, note(what));
  }

  void promote(const std::string& what, std::chrono::hours deadline) {
    queue_.promote(std::vector<page_write>(1), time_point{deadline}, note(what));
  }

  void remove(const std::string& what, std::chrono::hours deadline) {
    queue_.remove(keys, time_point{deadline}, note(what));
  }

  /// Lets the worker go on.
  /// @returns the batches as they were answered
  std::vector<std::string> order() {
    auto last = std::promise<void>{};
    queue_.write(std::vector<page_write>(1), no_deadline, [&](const auto&) { last.set_value(); });
    gate_.released.set_value();
    last.get_future().wait();
    return order_;
  }

  gate gate_;
  std::vector<std::string> order_;
  storage_queue queue_{gate_.backend(), 1};
};

TEST_F(StorageQueueOrderTest, ReadsBeginBeforePromotionsAndTheseBeforeOtherWrites) {
  write("write", 1h);
  remove("removal", 1h);
  queue_.list({}, time_point{1h}, note("list"));
  promote("promotion", 3h);
  read("read", 4h);
  queue_.lookup(keys, time_point{5h}, note("look-up"));
  queue_.health(note("health"));
  EXPECT_THAT(order(),
              ElementsAre("health", "read", "look-up", "promotion", "write", "removal", "list"));
}

TEST_F(StorageQueueOrderTest, ReadsBeginByTheirDeadlines) {
  read("third", 3h);
  read("first", 1h);
  queue_.lookup(keys, time_point{2h}, note("second"));
  read("fourth", 3h);
  EXPECT_THAT(order(), ElementsAre("first", "second", "third", "fourth"));
}

TEST_F(StorageQueueOrderTest, WritesKeepTheirOrderWhateverTheirDeadlines) {
  write("parent", 3h);
  write("child", 2h);
  remove("removal", 1h);
  write("again", 0h);
  promote("promoted parent", 9h);
  promote("promoted child", 8h);
  EXPECT_THAT(order(), ElementsAre("promoted parent", "promoted child", "parent", "child",
                                   "removal", "again"));
}

TEST_F(StorageQueueOrderTest, ABatchOfAnyClassIsWithdrawn) {
  write("write", 1h);
  const auto number = queue_.read(std::vector<page_read>(1), no_deadline, note("read"), {});
  EXPECT_EQ(queue_.expire(number), storage_queue::expiry::withdrawn);
  EXPECT_THAT(order(), ElementsAre("write"));
}

// -- calls that do not return -------------------------------------------------

TEST(StorageQueueTest, ABatchThatHasNotBegunIsWithdrawnAndNeverAnswered) {
  auto gate = test::gate{};
  auto answered = std::atomic<int>{0};
  {
    auto queue = storage_queue{gate.backend(), 1};
    const auto first = queue.lookup(keys, no_deadline, [&](auto) { ++answered; });
    gate.entered.get_future().wait();
    const auto second = queue.lookup(keys, no_deadline, [&](auto) { answered = 100; });
    EXPECT_EQ(queue.expire(second), storage_queue::expiry::withdrawn);
    EXPECT_EQ(queue.expire(second), storage_queue::expiry::finished);
    EXPECT_EQ(queue.expire(first), storage_queue::expiry::running);
    gate.released.set_value();
    EXPECT_TRUE(queue.close(no_limit));
    EXPECT_EQ(queue.expire(first), storage_queue::expiry::finished);
  }
  EXPECT_EQ(answered, 1);
  EXPECT_EQ(gate.calls, 1);
}

TEST(StorageQueueTest, AnotherThreadTakesThePlaceOfOneThatIsStuck) {
  auto released = std::promise<void>{};
  auto open = released.get_future().share();
  auto stuck = std::counting_semaphore<>{0};
  auto calls = std::atomic<size_t>{0};
  const auto most = limits::stuck_calls + 1; // The worker, and those in its place.
  auto queue = storage_queue{std::make_unique<scripted_backend>([&] {
                               if (++calls <= most) {
                                 stuck.release();
                                 open.wait();
                               }
                             }),
                             1};
  auto answered = std::atomic<size_t>{0};
  for (auto i = size_t{0}; i < most; ++i) {
    const auto number = queue.lookup(keys, no_deadline, [&](auto) { ++answered; });
    stuck.acquire();
    EXPECT_EQ(queue.expire(number), storage_queue::expiry::running);
  }
  // There is no thread for another one, until one returns.
  auto last = std::promise<void>{};
  queue.lookup(keys, no_deadline, [&](auto) { last.set_value(); });
  released.set_value();
  last.get_future().wait();
  EXPECT_TRUE(queue.close(no_limit));
  EXPECT_EQ(answered, most);
}

TEST(StorageQueueTest, HealthIsAskedBeforeAllThatWaits) {
  auto gate = test::gate{};
  auto order = std::vector<int>{};
  auto queue = storage_queue{gate.backend(), 1};
  queue.lookup(keys, no_deadline, [&](auto) { order.push_back(1); });
  gate.entered.get_future().wait();
  queue.lookup(keys, no_deadline, [&](auto) { order.push_back(3); });
  auto asked = std::promise<void>{};
  queue.health([&](const auto&) { order.push_back(2); });
  queue.lookup(keys, no_deadline, [&](auto) { asked.set_value(); });
  gate.released.set_value();
  asked.get_future().wait();
  EXPECT_TRUE(queue.close(no_limit));
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(StorageQueueTest, ACallThatNeverReturnsIsLeftBehind) {
  // What it uses must outlive the test.
  auto& gate = *new test::gate{};
  auto& answered = *new std::atomic<int>{0};
  auto refused = 0;
  {
    auto queue = storage_queue{gate.backend(), 1};
    queue.lookup(keys, no_deadline, [&](auto) { ++answered; });
    gate.entered.get_future().wait();
    queue.lookup(keys, no_deadline, [&](auto) { ++refused; });
    EXPECT_FALSE(queue.close(std::chrono::milliseconds{1}));
    EXPECT_EQ(refused, 1);
  }
  EXPECT_EQ(answered, 0);
}

} // namespace
} // namespace hicache::test
