#include "gpu/queued_copy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

namespace hicache {
namespace {

constexpr auto layers = uint32_t{4};
constexpr auto pool_pages = uint32_t{100};

page_list pages(std::vector<page_index> list) {
  return std::make_shared<const std::vector<page_index>>(std::move(list));
}

/// A mover that copies nothing, notes what it is asked for, and fails or waits as told.
class scripted_mover final : public page_mover {
public:
  /// What the test sees of the mover, which the engine owns. Any thread.
  struct script {
    std::mutex mutex;
    std::condition_variable changed;
    /// Host pages with which begin() fails, or finish_layer() at the given layer.
    std::set<page_index> fail_begin;
    std::map<page_index, uint32_t> fail_layer;
    /// Layers that may finish of loads with exactly these host pages; no entry: all.
    std::map<std::vector<page_index>, uint32_t> open_layers;
    bool stores_open = true;
    bool with_events = false;
    std::vector<std::vector<page_index>> begun;
    /// Calls of finish_layer(), by host pages.
    std::map<std::vector<page_index>, uint32_t> layers_asked;
    std::set<std::thread::id> begin_threads;
    uint32_t most_in_flight = 0;

    void change(const std::function<void(script&)>& how) {
      {
        const auto lock = std::scoped_lock{mutex};
        how(*this);
      }
      changed.notify_all();
    }

    void wait_until_begun(size_t submissions) {
      auto lock = std::unique_lock{mutex};
      changed.wait(lock, [&] { return begun.size() >= submissions; });
    }

    void wait_until_asked(const std::vector<page_index>& list, uint32_t count) {
      auto lock = std::unique_lock{mutex};
      changed.wait(lock, [&] { return layers_asked[list] >= count; });
    }
  };

  explicit scripted_mover(std::shared_ptr<script> plan) : script_(std::move(plan)) {}

  static void* event(uint32_t set, uint32_t layer) {
    static auto events = std::array<std::array<char, layers>, copy_sets>{};
    return &events[set][layer];
  }

  result<void> begin(copy_direction direction, uint32_t set, std::span<const page_index> l1_pages,
                     std::span<const page_index> l2_pages) override {
    auto& lane = lanes_[static_cast<size_t>(direction)];
    const auto lock = std::scoped_lock{script_->mutex};
    EXPECT_LT(set, copy_sets);
    EXPECT_FALSE(lane[set]) << "set " << set << " is in flight";
    EXPECT_FALSE(l2_pages.empty());
    EXPECT_TRUE(std::ranges::equal(l1_pages, l2_pages));
    script_->begun.emplace_back(l2_pages.begin(), l2_pages.end());
    script_->begin_threads.insert(std::this_thread::get_id());
    script_->changed.notify_all();
    if (holds(script_->fail_begin, l2_pages))
      return fail(ec::copy_failed, "begin broke");
    lane[set] = l2_pages;
    const auto in_flight = std::ranges::count_if(lane, [](const auto& x) { return !!x; });
    script_->most_in_flight = std::max(script_->most_in_flight, static_cast<uint32_t>(in_flight));
    return {};
  }

  result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) override {
    auto& submission = lanes_[static_cast<size_t>(direction)][set];
    auto lock = std::unique_lock{script_->mutex};
    EXPECT_TRUE(submission) << "set " << set << " is not in flight";
    const auto list = std::vector<page_index>{submission->begin(), submission->end()};
    ++script_->layers_asked[list];
    script_->changed.notify_all();
    for (const auto page : list)
      if (const auto found = script_->fail_layer.find(page);
          found != script_->fail_layer.end() && found->second <= layer) {
        submission.reset();
        return fail(ec::copy_failed, "layer " + std::to_string(layer) + " broke");
      }
    script_->changed.wait(lock, [&] { return may_finish(direction, list, layer); });
    if (layer + 1 == layers)
      submission.reset();
    return {};
  }

  std::vector<void*> layer_events(uint32_t set) const override {
    auto events = std::vector<void*>{};
    for (auto layer = uint32_t{0}; script_->with_events && layer < layers; ++layer)
      events.push_back(event(set, layer));
    return events;
  }

private:
  static bool holds(const std::set<page_index>& some, std::span<const page_index> list) {
    return std::ranges::any_of(list, [&](auto page) { return some.contains(page); });
  }

  bool may_finish(copy_direction direction, const std::vector<page_index>& list,
                  uint32_t layer) const {
    if (direction == copy_direction::store)
      return script_->stores_open;
    const auto found = script_->open_layers.find(list);
    return found == script_->open_layers.end() || layer < found->second;
  }

  std::shared_ptr<script> script_;
  /// By direction and set: the pages of what is in flight.
  std::array<std::array<std::optional<std::span<const page_index>>, copy_sets>, 2> lanes_;
};

using script = scripted_mover::script;

/// Whether everything happens on the caller's thread.
enum class threading { inline_copies, threads };

class QueuedCopyEngineTest : public testing::TestWithParam<threading> {
protected:
  struct report {
    operation_id id;
    result<void> outcome;
  };

  static layer_progress_ptr make_progress() { return std::make_shared<layer_progress>(layers); }

  /// A command that copies pages to pages of the same numbers.
  static write_command write(operation_id id, std::vector<page_index> list) {
    return {id, pages(list), pages(list)};
  }

  static load_command read(operation_id id, std::vector<page_index> list,
                           layer_progress_ptr progress = make_progress()) {
    return {id, pages(list), pages(list), std::move(progress)};
  }

  copy_engine::callback note() {
    return [this](operation_id id, const result<void>& outcome) {
      const auto lock = std::scoped_lock{mutex_};
      reports_.push_back({id, outcome});
    };
  }

  /// The operations in the order of their reports; failed ones as negative numbers.
  std::vector<int> reported() {
    const auto lock = std::scoped_lock{mutex_};
    auto list = std::vector<int>{};
    for (const auto& [id, outcome] : reports_)
      list.push_back(outcome ? static_cast<int>(id) : -static_cast<int>(id));
    return list;
  }

  std::shared_ptr<script> script_ = std::make_shared<script>();
  std::mutex mutex_;
  std::vector<report> reports_;
  std::unique_ptr<copy_engine> engine_ = make_queued_copy_engine(
    pool_pages, pool_pages, layers, std::make_unique<scripted_mover>(script_),
    GetParam() == threading::inline_copies);
};

using batches = std::vector<std::vector<page_index>>;

TEST_P(QueuedCopyEngineTest, TheCommandsOfACallAreOneSubmission) {
  engine_->store({write(1, {5, 6}), write(2, {}), write(3, {1})}, note());
  engine_->load({read(4, {7}), read(5, {9, 8})}, note());
  engine_->drain();
  auto begun = script_->begun;
  std::ranges::sort(begun);
  EXPECT_EQ(begun, (batches{{5, 6, 1}, {7, 9, 8}}));
  auto done = reported();
  std::ranges::sort(done);
  EXPECT_EQ(done, (std::vector{1, 2, 3, 4, 5}));
}

TEST_P(QueuedCopyEngineTest, AFailedStoreIsReportedAndTheNextOneRuns) {
  script_->fail_begin = {1};
  script_->fail_layer = {{2, layers - 1}};
  for (const auto page : {1u, 2u, 3u})
    engine_->store({write(page, {page})}, note());
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{-1, -2, 3}));
  EXPECT_EQ(reports_[0].outcome.error(), (error{ec::copy_failed, "begin broke"}));
  EXPECT_EQ(reports_[1].outcome.error(), (error{ec::copy_failed, "layer 3 broke"}));
  // A command that is alone in its submission is not tried again.
  EXPECT_EQ(script_->begun, (batches{{1}, {2}, {3}}));
}

TEST_P(QueuedCopyEngineTest, AFailedLoadWakesWhoWaitsForItsLayers) {
  script_->fail_layer = {{1, 2}};
  script_->fail_begin = {2};
  const auto broken = make_progress();
  const auto never = make_progress();
  const auto good = make_progress();
  engine_->load({read(1, {1}, broken)}, note());
  engine_->load({read(2, {2}, never)}, note());
  engine_->load({read(3, {3}, good)}, note());
  EXPECT_TRUE(broken->wait(1));
  EXPECT_FALSE(broken->wait(2));
  EXPECT_FALSE(never->wait(0));
  EXPECT_EQ(never->event(0), nullptr);
  EXPECT_TRUE(good->wait(3));
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{-1, -2, 3}));
  EXPECT_TRUE(broken->failed());
  EXPECT_EQ(broken->done(), 2u);
  EXPECT_FALSE(good->failed());
}

TEST_P(QueuedCopyEngineTest, AFailedNeighbourDoesNotFailOthers) {
  script_->fail_begin = {11};
  script_->fail_layer = {{22, 3}, {32, 1}};
  const auto first = make_progress();
  const auto second = make_progress();
  const auto third = make_progress();
  // The submission fails at its beginning, its end, and in the middle.
  engine_->store({write(1, {10}), write(2, {11}), write(3, {12, 13})}, note());
  engine_->drain();
  engine_->store({write(4, {20, 21}), write(5, {22}), write(6, {}), write(7, {23})}, note());
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1, -2, 3, 4, -5, 6, 7}));
  engine_->load({read(8, {30}, first), read(9, {31, 32}, second), read(10, {33}, third)}, note());
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1, -2, 3, 4, -5, 6, 7, 8, -9, 10}));
  EXPECT_EQ(script_->begun, (batches{{10, 11, 12, 13},
                                     {10},
                                     {11},
                                     {12, 13},
                                     {20, 21, 22, 23},
                                     {20, 21},
                                     {22},
                                     {23},
                                     {30, 31, 32, 33},
                                     {30},
                                     {31, 32},
                                     {33}}));
  EXPECT_EQ(first->done(), layers);
  EXPECT_FALSE(first->failed());
  EXPECT_EQ(second->done(), 1u);
  EXPECT_TRUE(second->failed());
  EXPECT_EQ(third->done(), layers);
  EXPECT_FALSE(third->failed());
}

TEST_P(QueuedCopyEngineTest, LoadsThatNeverBeganTogetherGetTheirEventsWhenTheyBeginAlone) {
  script_->with_events = true;
  script_->fail_begin = {2};
  const auto good = make_progress();
  const auto bad = make_progress();
  engine_->load({read(1, {1}, good), read(2, {2}, bad)}, note());
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1, -2}));
  EXPECT_EQ(good->done(), layers);
  EXPECT_EQ(bad->event(0), nullptr);
  EXPECT_TRUE(bad->failed());
}

TEST_P(QueuedCopyEngineTest, LoadsWhoseEventsWereGivenOutAreNotTriedAgain) {
  script_->with_events = true;
  script_->fail_layer = {{2, 1}};
  const auto first = make_progress();
  const auto second = make_progress();
  engine_->load({read(1, {1}, first), read(2, {2}, second)}, note());
  engine_->drain();
  // Somebody may compute behind an event of `first` already.
  EXPECT_EQ(reported(), (std::vector{-1, -2}));
  EXPECT_TRUE(first->failed());
  EXPECT_EQ(first->done(), 1u);
  EXPECT_EQ(script_->begun, (batches{{1, 2}}));
}

TEST_P(QueuedCopyEngineTest, NothingToCopyNeedsNoMover) {
  const auto progress = make_progress();
  engine_->store({}, note());
  engine_->store({write(1, {}), write(2, {})}, note());
  engine_->load({read(3, {}, progress)}, note());
  EXPECT_TRUE(progress->wait(layers - 1));
  EXPECT_EQ(progress->event(0), nullptr);
  engine_->drain();
  auto done = reported();
  std::ranges::sort(done);
  EXPECT_EQ(done, (std::vector{1, 2, 3}));
  EXPECT_TRUE(script_->begun.empty());
}

TEST_P(QueuedCopyEngineTest, ACallbackMaySubmitMore) {
  engine_->store({write(1, {1})}, [this](operation_id id, const result<void>&) {
    note()(id, {});
    engine_->store({write(2, {2})}, note());
    engine_->load({read(3, {3})}, note());
  });
  // The first drain may see the first store alone.
  engine_->drain();
  engine_->drain();
  auto done = reported();
  std::ranges::sort(done);
  EXPECT_EQ(done, (std::vector{1, 2, 3}));
}

TEST_P(QueuedCopyEngineTest, ReportsInIssueOrderWhateverFails) {
  auto expected = std::vector<int>{};
  for (auto id = 1; id <= 90;) {
    auto commands = std::vector<write_command>{};
    for (auto i = 0; i < id % 4 + 1; ++i, ++id) {
      const auto page = static_cast<page_index>(id);
      if (id % 7 == 0)
        script_->change([&](script& now) { now.fail_begin.insert(page); });
      if (id % 11 == 0)
        script_->change([&](script& now) { now.fail_layer[page] = 0; });
      commands.push_back(write(static_cast<operation_id>(id), {page}));
      expected.push_back(id % 7 == 0 || id % 11 == 0 ? -id : id);
    }
    engine_->store(std::move(commands), note());
  }
  engine_->drain();
  EXPECT_EQ(reported(), expected);
  EXPECT_EQ(script_->begin_threads.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Threads, QueuedCopyEngineTest,
                         testing::Values(threading::inline_copies, threading::threads),
                         [](const auto& chosen) {
                           return chosen.param == threading::threads ? "threads" : "inline_";
                         });

class CopyThreadsTest : public QueuedCopyEngineTest {};

TEST_P(CopyThreadsTest, ALayerIsPromisedWhenItHasArrivedAndNotBefore) {
  script_->with_events = true;
  script_->open_layers[{1}] = 0;
  const auto progress = make_progress();
  engine_->load({read(1, {1}, progress)}, note());
  for (auto layer = uint32_t{0}; layer < layers; ++layer) {
    // All layers are queued, those that have not arrived by their events.
    EXPECT_EQ(progress->event(layer), scripted_mover::event(0, layer));
    EXPECT_EQ(progress->done(), layer);
    script_->change([&](script& now) { now.open_layers[{1}] = layer + 1; });
    EXPECT_TRUE(progress->wait(layer));
    EXPECT_EQ(progress->event(layer), nullptr);
    EXPECT_EQ(progress->done(), layer + 1);
  }
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1}));
}

TEST_P(CopyThreadsTest, EventsFollowTheSetOfTheSubmission) {
  script_->with_events = true;
  script_->open_layers[{0}] = 0;
  auto progress = std::vector<layer_progress_ptr>{};
  for (auto id = operation_id{0}; id < copy_sets; ++id)
    engine_->load({read(id, {static_cast<page_index>(id)}, progress.emplace_back(make_progress()))},
                  note());
  auto events = std::set<void*>{};
  for (const auto& one : progress)
    events.insert(one->event(2));
  EXPECT_EQ(events.size(), copy_sets);
  EXPECT_FALSE(events.contains(nullptr));
  script_->change([](script& now) { now.open_layers.clear(); });
  engine_->drain();
}

TEST_P(CopyThreadsTest, ARetriedLoadKeepsWhatArrivedAndPromisesNoMore) {
  // Together they fail after two layers; alone, the first is held back from its first layer on.
  script_->fail_layer = {{2, 2}};
  script_->open_layers[{1}] = 0;
  const auto good = make_progress();
  const auto bad = make_progress();
  engine_->load({read(1, {1}, good), read(2, {2}, bad)}, note());
  const auto arrived = std::array{2u, 2u, 2u, 3u};
  for (auto layer = uint32_t{0}; layer < layers; ++layer) {
    script_->wait_until_asked({1}, layer + 1);
    EXPECT_EQ(good->done(), arrived[layer]) << "layer " << layer;
    EXPECT_FALSE(good->failed());
    EXPECT_EQ(good->event(3), nullptr);
    EXPECT_EQ(bad->done(), 2u);
    script_->change([&](script& now) { now.open_layers[{1}] = layer + 1; });
  }
  EXPECT_TRUE(good->wait(3));
  EXPECT_FALSE(bad->wait(2));
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1, -2}));
}

TEST_P(CopyThreadsTest, BeginsThreeSubmissionsAheadAndNoMore) {
  script_->open_layers[{1}] = 0;
  for (auto id = operation_id{1}; id <= 10; ++id)
    engine_->load({read(id, {static_cast<page_index>(id)})}, note());
  script_->wait_until_begun(copy_sets);
  EXPECT_TRUE(reported().empty());
  script_->change([](script& now) { now.open_layers.clear(); });
  engine_->drain();
  EXPECT_EQ(script_->most_in_flight, copy_sets);
  EXPECT_EQ(reported(), (std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(script_->begin_threads.size(), 1u);
}

TEST_P(CopyThreadsTest, LaterSubmissionsMayBeginWhileARetryRuns) {
  script_->fail_layer = {{2, 0}};
  script_->open_layers[{1}] = 1;
  script_->open_layers[{3}] = 0;
  engine_->load({read(1, {1}), read(2, {2})}, note());
  engine_->load({read(3, {3})}, note());
  engine_->load({read(4, {4})}, note());
  // Both together, one of them alone, and the two behind.
  script_->wait_until_begun(4);
  EXPECT_TRUE(reported().empty());
  script_->change([](script& now) { now.open_layers.clear(); });
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1, -2, 3, 4}));
}

TEST_P(CopyThreadsTest, ASlowStoreDoesNotHoldUpALoad) {
  script_->stores_open = false;
  engine_->store({write(1, {1})}, note());
  auto loaded = std::promise<void>{};
  engine_->load({read(2, {2})}, [&](auto, const auto&) { loaded.set_value(); });
  loaded.get_future().wait();
  EXPECT_TRUE(reported().empty());
  script_->change([](script& now) { now.stores_open = true; });
  engine_->drain();
  EXPECT_EQ(reported(), (std::vector{1}));
}

TEST_P(CopyThreadsTest, ADestroyedEngineFinishesRetriesToo) {
  script_->stores_open = false;
  script_->fail_layer = {{2, 0}, {7, 0}};
  for (auto id = operation_id{1}; id <= 9; id += 3)
    engine_->store({write(id, {static_cast<page_index>(id)}),
                    write(id + 1, {static_cast<page_index>(id + 1)}),
                    write(id + 2, {static_cast<page_index>(id + 2)})},
                   note());
  script_->wait_until_begun(1);
  auto opener
    = std::jthread{[this] { script_->change([](script& now) { now.stores_open = true; }); }};
  engine_.reset();
  EXPECT_EQ(reported(), (std::vector{1, -2, 3, 4, 5, 6, -7, 8, 9}));
}

TEST_P(CopyThreadsTest, ReleasesWhatACommandHoldsBeforeDrainReturns) {
  const auto list = pages({1, 2, 3});
  const auto progress = make_progress();
  engine_->load({{1, list, list, progress}}, note());
  engine_->drain();
  EXPECT_EQ(list.use_count(), 1);
  EXPECT_EQ(progress.use_count(), 1);
}

INSTANTIATE_TEST_SUITE_P(Threads, CopyThreadsTest, testing::Values(threading::threads),
                         [](const auto&) { return "threads"; });

TEST(InlineCopiesTest, RunOnTheCallersThread) {
  const auto notes = std::make_shared<script>();
  const auto engine = make_queued_copy_engine(pool_pages, pool_pages, layers,
                                              std::make_unique<scripted_mover>(notes), true);
  auto threads = std::set<std::thread::id>{};
  const auto list = pages({1});
  engine->store({{1, list, list}},
                [&](auto, const auto&) { threads.insert(std::this_thread::get_id()); });
  engine->load({{2, list, list, std::make_shared<layer_progress>(layers)}},
               [&](auto, const auto&) { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
  EXPECT_EQ(notes->begin_threads, threads);
}

} // namespace
} // namespace hicache
