// What the two tiers keep together, beside an ideal cache of their size.

#include "tests/cache/tier_replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

using namespace hicache;
using namespace hicache::test;

namespace {

constexpr auto all_writes
  = {write_policy::write_through, write_policy::write_through_selective, write_policy::write_back};

const char* name_of(write_policy write) {
  return write == write_policy::write_through             ? "write_through"
         : write == write_policy::write_through_selective ? "write_through_selective"
                                                          : "write_back";
}

page_string distinct_pages(uint32_t& next, uint32_t count) {
  auto prompt = page_string(count);
  std::ranges::generate(prompt, [&next] { return next++; });
  return prompt;
}

/// 120 prompts of 64 pages once, then 48 others eight times, in random order.
std::vector<page_string> moving_working_set() {
  auto random = std::mt19937{7};
  auto prompts = std::vector<page_string>{};
  auto next = uint32_t{1};
  for (auto i = 0; i < 120; ++i)
    prompts.push_back(distinct_pages(next, 64));
  auto others = std::vector<page_string>{};
  for (auto i = 0; i < 48; ++i)
    others.push_back(distinct_pages(next, 64));
  for (auto round = 0; round < 8; ++round) {
    std::ranges::shuffle(others, random);
    prompts.insert(prompts.end(), others.begin(), others.end());
  }
  return prompts;
}

/// Conversations that share a few long beginnings and grow by a turn each time that they return,
/// some soon, some late.
std::vector<page_string> conversations() {
  auto random = std::mt19937{11};
  const auto below = [&random](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  auto next = uint32_t{1};
  auto beginnings = std::vector<page_string>{};
  for (auto i = 0; i < 4; ++i)
    beginnings.push_back(distinct_pages(next, 40));
  auto prompts = std::vector<page_string>{};
  auto open = std::vector<page_string>{};
  for (auto i = 0; i < 3000; ++i) {
    if (open.size() < 150 || below(100) < 30)
      open.push_back(beginnings[below(4)]);
    // Mostly one of the latest, sometimes any.
    const auto age = below(10) == 0 ? below(static_cast<uint32_t>(open.size())) : below(60);
    auto& chosen = open[open.size() - 1 - std::min<size_t>(age, open.size() - 1)];
    const auto turn = distinct_pages(next, 5 + below(30));
    chosen.insert(chosen.end(), turn.begin(), turn.end());
    prompts.push_back(chosen);
    if (chosen.size() > 300)
      open.erase(open.begin() + (&chosen - open.data()));
  }
  return prompts;
}

/// The hits must be within 2 % of what is ideal for these tiers. What steps evict ahead is what MRU
/// and FILO would have kept least, the prompt just served, so they may lose that share as well.
void expect_ideal(const tree_options& options, const std::vector<page_string>& all) {
  const auto prompts = fitting(all, options.l1_pages);
  const auto ideal = ideal_hits(ideal_of(options), options.eviction, prompts);
  const auto counts = replay_prompts(options, prompts);
  const auto name = options.eviction->name();
  SCOPED_TRACE(testing::Message() << name << ", " << name_of(options.write) << ", "
                                  << options.l1_pages << " + " << options.l2_pages << " pages");
  const auto least = name == "mru" || name == "filo" ? 0.97 : 0.98;
  EXPECT_GE(static_cast<double>(counts.hits), least * static_cast<double>(ideal));
  EXPECT_LE(counts.writes_per_page(), 1.05);
}

} // namespace

TEST(Retention, MovingWorkingSetStaysUnderEveryWritePolicy) {
  const auto prompts = moving_working_set();
  for (const auto write : all_writes)
    expect_ideal(tiers(write, 2048, 4096), prompts);
}

TEST(Retention, ConversationsStayUnderEveryWritePolicyAndSize) {
  const auto prompts = conversations();
  const auto unique = count_unique(prompts);
  for (const auto write : all_writes)
    for (const auto device : {unique / 50, unique / 20, unique / 5})
      for (const auto ratio : {1, 2, 4})
        expect_ideal(tiers(write, device, device * ratio), prompts);
}

TEST(Retention, EveryEvictionPolicyKeepsItsOwnIdeal) {
  const auto prompts = conversations();
  const auto unique = count_unique(prompts);
  for (const auto* name : {"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"})
    for (const auto write : {write_policy::write_through, write_policy::write_back}) {
      auto options = tiers(write, unique / 20, unique / 10);
      options.eviction = *make_eviction_policy(name);
      expect_ideal(options, prompts);
    }
}

TEST(Retention, L3TakesEveryPageThroughASmallShareOfAFullL2) {
  const auto prompts = conversations();
  const auto unique = count_unique(prompts);
  for (const auto write : {write_policy::write_through, write_policy::write_back}) {
    auto options = tiers(write, unique / 20, unique / 10);
    options.storage_attached = true;
    const auto ideal = ideal_hits(ideal_of(options), options.eviction, prompts);
    const auto counts = replay_prompts(options, prompts);
    SCOPED_TRACE(name_of(write));
    EXPECT_GE(static_cast<double>(counts.hits), 0.98 * static_cast<double>(ideal));
    // What is in L1 yet has not been written back.
    EXPECT_GE(counts.backups + (write == write_policy::write_back ? options.l1_pages : 0), unique);
    EXPECT_LE(counts.writes_per_page(), 2.05) << "once for L3 and once for L2";
  }
}

TEST(Retention, AnL2ThatIsExportedKeepsWhatL1HasToo) {
  const auto prompts = conversations();
  const auto unique = count_unique(prompts);
  for (const auto ratio : {2, 4}) {
    auto options = tiers(write_policy::write_through, unique / 20, ratio * unique / 20);
    options.storage_attached = true;
    options.storage_exports_l2 = true;
    const auto ideal = ideal_hits({options.l2_pages, 0, 0}, options.eviction, prompts);
    const auto counts = replay_prompts(options, prompts);
    SCOPED_TRACE(ratio);
    EXPECT_GE(static_cast<double>(counts.hits), 0.98 * static_cast<double>(ideal));
    EXPECT_GE(static_cast<double>(counts.copies), 0.95 * options.l1_pages);
    EXPECT_GE(counts.backups, unique);
    EXPECT_LE(counts.writes_per_page(), 1.0) << "once for both";
  }
}

TEST(Retention, ConversationTraceStaysUnderEveryWritePolicy) {
  const auto prompts = read_trace(HICACHE_CONVERSATION_TRACE, 1500, 64);
  if (prompts.empty())
    GTEST_SKIP() << "the trace is not there";
  const auto unique = count_unique(prompts);
  for (const auto write : all_writes)
    for (const auto share : {100, 20, 5})
      for (const auto ratio : {1, 2, 4})
        expect_ideal(tiers(write, unique / share, ratio * unique / share), prompts);
}
