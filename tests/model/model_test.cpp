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

INSTANTIATE_TEST_SUITE_P(Parts, ModelTest, testing::Range(uint64_t{0}, parts));

} // namespace
