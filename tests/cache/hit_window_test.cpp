#include "base/limits.hpp"
#include "cache/step/hit_window.hpp"
#include "cache/step/in_order_counter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace hicache;

using resolution = std::vector<std::pair<fetch_id, hit_length>>;

namespace {

/// Of a rank that wants all it found.
hit_length all(int64_t pages) {
  return {pages, pages};
}

constexpr auto entry = hit_window::entry_values;

} // namespace

TEST(HitWindow, WaitsForTheOldestPrefetch) {
  auto window = hit_window{};
  EXPECT_EQ(window.next(), std::nullopt);
  window.issue(1);
  window.issue(2);
  window.known(2, all(7));
  EXPECT_EQ(window.next(), std::nullopt);
  window.known(1, all(5));
  const auto vector = window.next();
  ASSERT_TRUE(vector);
  EXPECT_EQ(vector->size(), limits::hit_window_size * entry);
  EXPECT_EQ((*vector)[0], 5);
  EXPECT_EQ((*vector)[entry], 7);
  EXPECT_EQ((*vector)[2 * entry], -1);
}

TEST(HitWindow, HasOneReductionInFlight) {
  auto window = hit_window{};
  window.issue(1);
  window.known(1, all(5));
  auto vector = window.next();
  ASSERT_TRUE(vector);
  window.issue(2);
  window.known(2, all(3));
  EXPECT_EQ(window.next(), std::nullopt);
  EXPECT_EQ(window.agreed(*vector), (resolution{{1, all(5)}}));
  EXPECT_TRUE(window.next());
}

TEST(HitWindow, ResolvesUpToTheFirstUnknownLength) {
  auto window = hit_window{};
  for (auto id = fetch_id{1}; id <= 4; ++id) {
    window.issue(id);
    window.known(id, all(static_cast<int64_t>(10 * id)));
  }
  auto minimum = *window.next();
  minimum[entry] = 4;
  minimum[2 * entry] = -1;
  EXPECT_EQ(window.agreed(minimum), (resolution{{1, all(10)}, {2, {4, 20}}}));
  EXPECT_EQ(window.unresolved(), 2);
  EXPECT_EQ((*window.next())[0], 30);
}

TEST(HitWindow, TakesTheFewestPagesAndTheLongestTimes) {
  auto one = hit_window{};
  auto other = hit_window{};
  for (auto* window : {&one, &other})
    window->issue(1);
  one.known(1, {.found = 9, .wanted = 5, .load_ns = 70, .compute_ns = 40});
  other.known(1, {.found = 8, .wanted = 8, .load_ns = 30, .compute_ns = 50});
  auto minimum = *one.next();
  std::ranges::transform(minimum, *other.next(), minimum.begin(),
                         [](int64_t a, int64_t b) { return std::min(a, b); });
  const auto agreed = hit_length{.found = 8, .wanted = 5, .load_ns = 70, .compute_ns = 50};
  for (auto* window : {&one, &other})
    EXPECT_EQ(window->agreed(minimum), (resolution{{1, agreed}}));
}

TEST(HitWindow, BoundsTheWindow) {
  auto window = hit_window{};
  const auto count = limits::hit_window_size + 5;
  for (auto id = fetch_id{1}; id <= count; ++id) {
    window.issue(id);
    window.known(id, all(1));
  }
  EXPECT_EQ(window.agreed(*window.next()).size(), limits::hit_window_size);
  EXPECT_EQ(window.agreed(*window.next()).size(), 5);
  EXPECT_EQ(window.unresolved(), 0);
}

namespace {

/// A rank that learns its lengths in an order of its own.
struct rank {
  hit_window window;
  std::vector<fetch_id> to_issue;
  std::vector<fetch_id> to_learn;
  std::vector<int64_t> lengths;
  std::optional<std::vector<int64_t>> offered;
  std::vector<resolution> outcomes;
};

} // namespace

TEST(HitWindow, RanksReduceEquallyOftenWhateverTheTiming) {
  for (auto seed = 0u; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = std::mt19937{seed};
    const auto fetches = fetch_id{100};
    auto ranks = std::vector<rank>(1 + seed % 4);
    for (auto& each : ranks)
      for (auto id = fetches; id > 0; --id) {
        each.to_issue.push_back(id);
        each.lengths.push_back(static_cast<int64_t>(random() % 50));
      }
    const auto is_busy = [&](const rank& each) {
      return !each.to_issue.empty() || !each.to_learn.empty() || each.window.unresolved() > 0;
    };
    while (std::any_of(ranks.begin(), ranks.end(), is_busy)) {
      auto& each = ranks[random() % ranks.size()];
      if (random() % 2 == 0 && !each.to_issue.empty()) {
        each.window.issue(each.to_issue.back());
        each.to_learn.push_back(each.to_issue.back());
        each.to_issue.pop_back();
      } else if (!each.to_learn.empty()) {
        std::swap(each.to_learn[random() % each.to_learn.size()], each.to_learn.back());
        const auto id = each.to_learn.back();
        each.to_learn.pop_back();
        each.window.known(id, all(each.lengths[id - 1]));
      }
      if (!each.offered)
        each.offered = each.window.next();
      // The reduction completes when the last rank has entered it.
      if (!std::all_of(ranks.begin(), ranks.end(),
                       [](const rank& r) { return r.offered.has_value(); }))
        continue;
      auto minimum = *ranks.front().offered;
      for (const auto& other : ranks)
        std::transform(minimum.begin(), minimum.end(), other.offered->begin(), minimum.begin(),
                       [](int64_t a, int64_t b) { return std::min(a, b); });
      for (auto& other : ranks) {
        other.outcomes.push_back(other.window.agreed(minimum));
        other.offered.reset();
      }
    }
    auto resolved = resolution{};
    for (const auto& outcome : ranks.front().outcomes)
      resolved.insert(resolved.end(), outcome.begin(), outcome.end());
    ASSERT_EQ(resolved.size(), fetches);
    for (auto id = fetch_id{1}; id <= fetches; ++id) {
      auto least = INT64_MAX;
      for (const auto& each : ranks)
        least = std::min(least, each.lengths[id - 1]);
      EXPECT_EQ(resolved[id - 1], (std::pair{id, all(least)}));
    }
    for (const auto& each : ranks)
      EXPECT_EQ(each.outcomes, ranks.front().outcomes);
  }
}

TEST(InOrderCounter, CountsWhatFinishedWithoutAGap) {
  auto counter = in_order_counter{};
  EXPECT_EQ(counter.done(), 0);
  counter.complete(2);
  counter.complete(3);
  EXPECT_EQ(counter.done(), 0);
  counter.complete(1);
  EXPECT_EQ(counter.done(), 3);
  counter.complete(5);
  EXPECT_EQ(counter.done(), 3);
  counter.complete(4);
  EXPECT_EQ(counter.done(), 5);
}

TEST(InOrderCounterDeathTest, RefusesAnOperationThatFinishesTwice) {
  auto counter = in_order_counter{};
  counter.complete(1);
  counter.complete(3);
  EXPECT_DEATH(counter.complete(1), "");
  EXPECT_DEATH(counter.complete(3), "");
}
