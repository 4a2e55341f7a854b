#include "base/check.hpp"
#include "cache/oplog/op_log.hpp"
#include "tests/model/operation_generator.hpp"
#include "tests/model/sequence.hpp"
#include "tests/model/shrink.hpp"
#include "tests/support/op_logs.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <variant>

using namespace hicache;
using namespace hicache::test;

namespace {

enum class planted_fault : uint8_t { wrong_answer, abort };

/// Applies operations with a fault on purpose: after an insert of a part of a prefill that the tree
/// took pages of, the next eviction from L1 goes wrong.
class faulty_apply {
public:
  explicit faulty_apply(planted_fault fault) : fault_(fault) {}

  tree_answer operator()(prefix_cache& cache, const tree_operation& operation) {
    auto answer = apply(cache, operation);
    if (const auto* asked = std::get_if<insert_request>(&operation); asked != nullptr && answer)
      is_armed_ |= asked->chunked && std::get<insert_result>(*answer).node != 0;
    const auto* asked = std::get_if<evict_request>(&operation);
    if (!is_armed_ || asked == nullptr || asked->tier != cache_tier::l1)
      return answer;
    HICACHE_CHECK(fault_ != planted_fault::abort);
    std::get<evict_result>(*answer).tokens += 1;
    return answer;
  }

private:
  planted_fault fault_;
  bool is_armed_ = false;
};

class ShrinkTest : public testing::TestWithParam<planted_fault> {};

/// Any seed whose sequence shows the fault among much else.
constexpr uint64_t seed = 5;

TEST_P(ShrinkTest, FindsTheFewActionsThatShowAPlantedFault) {
  const auto faulty = faulty_apply{GetParam()};
  const auto shows = [&](const sequence& played) {
    return !passes_in_child([&] { return !play(played, faulty); }, child_output::silent);
  };
  const auto whole = generate(seed, copy_time::at_once, 300);
  ASSERT_TRUE(shows(whole));
  const auto shortest = shrink(whole, shows);
  // match, allocate, insert, evict.
  EXPECT_EQ(shortest.actions.size(), 4);
  EXPECT_TRUE(shows(shortest));

  const auto path = testing::TempDir() + "hicache-planted-" + std::to_string(int(GetParam()));
  write_log(shortest, path, faulty);
  auto text = std::ostringstream{};
  text << std::ifstream{path}.rdbuf();
  const auto entries = parse_op_log(text.str());
  ASSERT_TRUE(entries) << entries.error().detail;
  ASSERT_GE(entries->size(), 5);
  const auto& last = std::get<tree_operation>(entries->back().event);
  EXPECT_TRUE(std::holds_alternative<evict_request>(last));
  // The healthy cache goes the same way as far as the fault.
  const auto digests = replay(*entries);
  ASSERT_TRUE(digests) << digests.error().detail;
  EXPECT_EQ(digests->back(), play_alone(shortest));
}

INSTANTIATE_TEST_SUITE_P(Faults, ShrinkTest,
                         testing::Values(planted_fault::wrong_answer, planted_fault::abort));

TEST(ShrinkTest, KeepsOnlyWhatTheFaultNeeds) {
  auto whole = sequence{};
  for (auto i = uint64_t{1}; i <= 100; ++i)
    whole.actions.push_back({i, step_action{}, 0});
  auto tried = 0;
  const auto shortest = shrink(whole, [&](const sequence& played) {
    ++tried;
    auto found = 0;
    for (const auto& each : played.actions)
      found += each.number == 17 || each.number == 18 || each.number == 93 ? 1 : 0;
    return found == 3;
  });
  ASSERT_EQ(shortest.actions.size(), 3);
  EXPECT_EQ(shortest.actions[0].number, 17);
  EXPECT_EQ(shortest.actions[1].number, 18);
  EXPECT_EQ(shortest.actions[2].number, 93);
  EXPECT_LT(tried, 200);
}

// -- op logs and digests ------------------------------------------------------

TEST(SequenceTest, LogReplaysToTheSameDigest) {
  for (auto i = uint64_t{0}; i < 20; ++i)
    for (const auto copies : {copy_time::at_once, copy_time::late}) {
      const auto played = generate(i * 13, copies, 100);
      auto log = std::ostringstream{};
      const auto digest = play_alone(played, &log);
      const auto entries = parse_op_log(log.str());
      ASSERT_TRUE(entries) << "seed " << i * 13 << ": " << entries.error().detail;
      const auto digests = replay(*entries);
      ASSERT_TRUE(digests) << "seed " << i * 13 << ": " << digests.error().detail;
      EXPECT_EQ(digests->back(), digest) << "seed " << i * 13;
    }
}

/// The generator's sequences of many kinds of cache, folded into one number.
uint64_t digest_of_many() {
  auto sum = uint64_t{0};
  for (auto i = uint64_t{0}; i < 168; ++i) {
    auto played = generate(i, i % 3 == 0 ? copy_time::at_once : copy_time::late, 150);
    // Leave the cache full.
    played.actions.resize(150);
    // The number below is older than joined nodes.
    played.options.join_nodes = false;
    sum = sum * 0x9e3779b97f4a7c15 + play_alone(played);
  }
  return sum;
}

// Addresses and the hash seeds of absl differ between two runs of a program, compilers between two
// builds; the digest may not. A change of what the cache does with the same operations changes it,
// and so does one of the generator: then put the new number here.
TEST(SequenceTest, DigestIsTheSameInEveryBuildAndRun) {
  EXPECT_EQ(digest_of_many(), 4159303572073148362U);
  EXPECT_EQ(digest_of_many(), digest_of_many());
}

} // namespace
