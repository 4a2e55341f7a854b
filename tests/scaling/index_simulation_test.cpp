#include "base/limits.hpp"
#include "bench/index_simulation.hpp"
#include "bench/index_world.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

namespace hicache::bench {
namespace {

simulation_options small_cluster() {
  auto options = simulation_options{};
  options.members = 50;
  options.keys = 200'000;
  options.shards = 4;
  return options;
}

double figure(const simulation_report& report, const std::string& name) {
  const auto at = std::ranges::find(report.simulated, name, &simulation_figure::name);
  if (at == report.simulated.end()) {
    ADD_FAILURE() << "there is no figure '" << name << "'";
    return -1;
  }
  return at->value;
}

/// Copies come back within the limit, and readers notice nothing. That each page has as many as
/// before, and no member reads more, the simulation itself makes sure of.
void expect_repair(const simulation_report& report) {
  for (const auto* loss : {"a member dies", "two members die one after the other"}) {
    const auto name = std::string{"two copies, "} + loss;
    EXPECT_GT(figure(report, name + ": copies made anew"), 1000);
    EXPECT_GE(figure(report, name + ": the first after"), 12.5) << "ttl and repair_policy::delay";
    EXPECT_LE(figure(report, name + ": read from the busiest member, a second"), 168);
    EXPECT_EQ(figure(report, name + ": misses of keys that are there"), 0);
    EXPECT_LT(figure(report, name + ": longest wait of a lookup"), 10);
  }
  EXPECT_EQ(figure(report, "two copies, 10 % of the members lose their connections: "
                           "pages in block reports"),
            0);
}

TEST(IndexSimulationTest, TheIndexIsWholeAfterEachEventAndEqualSeedsGiveEqualFigures) {
  const auto first = simulate_index(small_cluster(), {});
  ASSERT_TRUE(first) << to_string(first.error());
  const auto second = simulate_index(small_cluster(), {});
  ASSERT_TRUE(second) << to_string(second.error());
  EXPECT_EQ(first->simulated, second->simulated);

  EXPECT_LE(figure(*first, "start: memory per key: index_table::memory_bytes"), 2 * 96);
  EXPECT_EQ(figure(*first, "steady: misses of keys that are there"), 0);
  EXPECT_EQ(figure(*first, "steady: requests that failed"), 0);
  EXPECT_EQ(figure(*first, "restart of a shard: misses of keys that are there"), 0);
  EXPECT_GT(figure(*first, "restart of a shard: keys that both keepers were asked for"), 0);
  EXPECT_LT(figure(*first, "a member's connection closes: no longer offered after"), 0.01);
  // Silent since its last heartbeat, and the shard looks now and then.
  EXPECT_GE(figure(*first, "a member falls silent: no longer offered after"), 7.5);
  EXPECT_LE(figure(*first, "a member falls silent: no longer offered after"), 12.6);
  EXPECT_NEAR(figure(*first, "a shard joins: share of all keys"), 40, 2);
  EXPECT_EQ(figure(*first, "a shard joins: keys that moved elsewhere"), 0);
  EXPECT_GT(figure(*first, "steady: questions for members"), 0);
  EXPECT_LE(figure(*first, "steady: lists of members that the busiest shard answers"), 40);
  EXPECT_GT(figure(*first, "10 % of the members are cut off for 6 s: requests that failed"), 0);
  for (const auto* away :
       {"10 % of the members lose their connections", "10 % of the members are cut off for 6 s"})
    EXPECT_EQ(figure(*first, std::string{away} + ": pages in block reports"), 0);
  EXPECT_GT(
    figure(*first, "10 % of the members are cut off for 15 s, healed: pages in block reports"), 0);
  expect_repair(*first);
}

/// Takes 16 GB and ten minutes: `ctest --preset long`.
TEST(IndexSimulationTest, AThousandMembersAndAHundredMillionKeys) {
  if (std::getenv("HICACHE_SCALING_FULL") == nullptr)
    GTEST_SKIP() << "HICACHE_SCALING_FULL is not set";
  auto options = simulation_options{};
  ASSERT_EQ(options.members, 1000u);
  ASSERT_EQ(options.keys, 100'000'000u);
  const auto report = simulate_index(options, {});
  ASSERT_TRUE(report) << to_string(report.error());
  EXPECT_LE(figure(*report, "start: memory per key: index_table::memory_bytes"), 2 * 96);
  EXPECT_EQ(figure(*report, "restart of a shard: misses of keys that are there"), 0);
  EXPECT_EQ(figure(*report, "steady: misses of keys that are there"), 0);
  EXPECT_EQ(figure(*report, "steady: requests that failed"), 0);
  EXPECT_LT(figure(*report, "a member's connection closes: no longer offered after"), 0.1);
  EXPECT_EQ(figure(*report, "a shard joins: keys that moved elsewhere"), 0);
  EXPECT_LE(figure(*report, "steady: lists of members that the busiest shard answers"), 20);
  expect_repair(*report);
}

TEST(IndexSimulationTest, ListsOfManyMembersComeInParts) {
  using namespace std::chrono_literals;
  auto world = index_world{1100, 300, 2, 1, {}};
  world.fill();
  const auto settle = [&world] {
    const auto is_whole = [&world] { return world.is_settled() && world.is_quiet(); };
    ASSERT_TRUE(world.run(60s, is_whole));
  };
  // By id and of all; who knows dead ones by id asks for them, too.
  const auto expect_lists = [&](uint64_t parts) {
    world.take_reader_figures();
    const auto asked = world.list_all();
    settle();
    EXPECT_EQ(world.difference_of_lists(asked), std::nullopt);
    const auto seen = world.take_reader_figures();
    EXPECT_GE(seen.lists, 2 * parts * asked.size());
    EXPECT_EQ(seen.longest_list, limits::members_listed);
  };
  settle();
  expect_lists(3);
  world.restart_shard(0, 1s);
  settle();
  expect_lists(3);
  for (auto m = uint32_t{0}; m < 100; ++m)
    world.kill_member(m, m % 2 == 0);
  world.run(2 * member_ttl);
  settle();
  expect_lists(2);
}

TEST(IndexSimulationTest, ASignalEndsIt) {
  auto hooks = simulation_hooks{};
  hooks.is_stopped = [] { return true; };
  const auto stopped = simulate_index(small_cluster(), hooks);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ec::stopping);
}

TEST(IndexSimulationTest, OptionsThatMakeNoClusterGetASentence) {
  auto options = small_cluster();
  options.members = 9;
  EXPECT_EQ(simulate_index(options, {}).error().detail, "9 members; expected 10 to 65536");
  options = small_cluster();
  options.shards = 1;
  EXPECT_EQ(simulate_index(options, {}).error().detail, "1 shards; expected 2 to 255");
  options = small_cluster();
  options.keys = 1000;
  EXPECT_EQ(simulate_index(options, {}).error().code, ec::invalid_argument);
}

} // namespace
} // namespace hicache::bench
