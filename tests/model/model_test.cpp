#include "base/check.hpp"
#include "cache/oplog/op_log.hpp"
#include "tests/model/operation_generator.hpp"
#include "tests/model/sequence.hpp"
#include "tests/model/shrink.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace hicache;
using namespace hicache::test;

namespace {

constexpr size_t actions_each = 300;
/// Sequences that share a child process.
constexpr uint64_t batch_size = 32;
/// Parts of a campaign, which run side by side.
constexpr uint64_t parts = 8;

uint64_t number_from(const char* variable, uint64_t fallback) {
  const auto* text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

bool passes(uint64_t seed, copy_time copies) {
  const auto wrong = play(generate(seed, copies, actions_each));
  if (wrong)
    std::fprintf(stderr, "action %zu: %s\n", wrong->action, wrong->what.c_str());
  return !wrong;
}

/// Shrinks the sequence, says what is wrong with it, and leaves an op log.
std::string report(uint64_t seed, copy_time copies) {
  const auto shows = [](const sequence& played) {
    return !passes_in_child([&] { return !play(played); }, child_output::silent);
  };
  const auto shortest = shrink(generate(seed, copies, actions_each), shows);
  const auto path = testing::TempDir() + "model-" + std::to_string(seed) + ".jsonl";
  write_log(shortest, path);
  static_cast<void>(passes_in_child(
    [&] {
      const auto wrong = play(shortest);
      if (wrong)
        std::fprintf(stderr, "shrunk, action %zu: %s\n", wrong->action, wrong->what.c_str());
      return !wrong;
    },
    child_output::shown));
  auto log = std::ostringstream{};
  log << std::ifstream{path}.rdbuf();
  return "seed " + std::to_string(seed) + ", " + describe(shortest) + "; op log " + path + ":\n"
         + log.str();
}

/// Plays the sequences of one part.
void run_campaign(uint64_t part, copy_time copies, uint64_t operations) {
  const auto count = operations / parts / actions_each + 1;
  for (auto first = uint64_t{0}; first < count; first += batch_size) {
    const auto end = std::min(first + batch_size, count);
    const auto seed_of = [&](uint64_t i) { return i * parts + part; };
    const auto all_pass = [&] {
      for (auto i = first; i < end; ++i)
        if (!passes(seed_of(i), copies))
          return false;
      return true;
    };
    if (passes_in_child(all_pass, child_output::silent))
      continue;
    for (auto i = first; i < end; ++i)
      if (!passes_in_child([&] { return passes(seed_of(i), copies); }, child_output::shown))
        FAIL() << report(seed_of(i), copies);
    FAIL() << "seeds " << seed_of(first) << " to " << seed_of(end) << " fail only together";
  }
}

/// What an answer says, but for ids of nodes and pages.
std::string meaning_of(const tree_answer& answer) {
  if (!answer)
    return to_string(answer.error().code);
  auto text = std::ostringstream{};
  if (const auto* matched = std::get_if<match_result>(&*answer))
    text << matched->l1_tokens << " " << matched->l2_tokens;
  else if (const auto* loaded = std::get_if<load_result>(&*answer))
    text << loaded->l1_tokens << " " << loaded->loading_tokens;
  else if (const auto* inserted = std::get_if<insert_result>(&*answer))
    text << inserted->duplicate_tokens << " " << inserted->pinned_tokens;
  else if (const auto* evicted = std::get_if<evict_result>(&*answer))
    text << evicted->tokens << " " << evicted->writing_tokens;
  else if (const auto* pinned = std::get_if<pin_result>(&*answer))
    text << pinned->tokens;
  return text.str();
}

/// Plays a sequence with and without joined nodes. @returns the nodes after each action, summed up.
std::pair<uint64_t, uint64_t> play_both(sequence played) {
  played.options.join_nodes = true;
  auto joined = cache_player{played.options};
  played.options.join_nodes = false;
  auto split = cache_player{played.options};
  auto nodes = std::pair<uint64_t, uint64_t>{};
  for (const auto& each : played.actions) {
    if (const auto* facts = std::get_if<step_action>(&each.what)) {
      joined.step(*facts);
      split.step(*facts);
    } else {
      const auto found = meaning_of(joined.perform(each, joined.complete(each)));
      EXPECT_EQ(found, meaning_of(split.perform(each, split.complete(each))))
        << "action " << each.number;
    }
    joined.cache().check_invariants();
    const auto is = joined.cache().stats();
    const auto was = split.cache().stats();
    EXPECT_EQ(is.l1_free, was.l1_free) << "action " << each.number;
    EXPECT_EQ(is.l2_free, was.l2_free) << "action " << each.number;
    nodes.first += is.nodes;
    nodes.second += was.nodes;
  }
  return nodes;
}

class ModelTest : public testing::TestWithParam<uint64_t> {
protected:
  static uint64_t operations() {
    return number_from("HICACHE_MODEL_OPERATIONS", HICACHE_MODEL_OPERATIONS);
  }
};

TEST_P(ModelTest, CacheAgreesWhenCopiesFinishAtOnce) {
  run_campaign(GetParam(), copy_time::at_once, operations());
}

TEST_P(ModelTest, CacheKeepsItsPromisesWhenCopiesFinishLate) {
  run_campaign(GetParam(), copy_time::late, operations() / 2);
}

// Under write_through only: where pages are saved when they leave L1, those above them cannot leave
// meanwhile unless they are in the same node, so younger ones leave in their place.
TEST(JoinedNodesTest, ChangeNoAnswer) {
  auto joined = uint64_t{0};
  auto split = uint64_t{0};
  for (auto seed = uint64_t{0}; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto played = generate(seed, copy_time::late, actions_each);
    if (played.options.write != write_policy::write_through)
      continue;
    const auto [fewer, more] = play_both(std::move(played));
    joined += fewer;
    split += more;
  }
  EXPECT_LT(joined, split) << "nothing was joined";
}

INSTANTIATE_TEST_SUITE_P(Parts, ModelTest, testing::Range(uint64_t{0}, parts));

} // namespace
