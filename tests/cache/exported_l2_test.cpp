// Pages of L2 that L3 offers where they lie: what L2 keeps then, and what L3 is known to have.

#include "tests/cache/storage_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace hicache {
namespace {

using namespace hicache::test;

/// L2 has room for two of the prompts A to D, L1 for four.
tree_options exporting(write_policy write = write_policy::write_through) {
  auto options = with_storage(prefetch_policy::wait_complete);
  options.write = write;
  options.storage_exports_l2 = true;
  return options;
}

const auto D = range(301, 317);

/// Whether others find all of these tokens in L2, be it in several nodes. The prompts have no token
/// in common.
bool is_offered(tree_driver& d, const tokens_t& tokens) {
  auto offered = std::set<token_id>{};
  for (const auto& node : d.tree.nodes())
    if (node.in_l2 && node.in_storage)
      offered.insert(node.tokens.begin(), node.tokens.end());
  return std::ranges::all_of(tokens, [&](token_id token) { return offered.contains(token); });
}

TEST(ExportedHost, CopiesOfWhatL1HasStayForAsLongAsOtherPages) {
  auto d = tree_driver{exporting()};
  for (const auto& prompt : {A, B, C}) {
    d.insert(prompt);
    d.finish();
    EXPECT_TRUE(is_offered(d, prompt));
  }
  EXPECT_FALSE(is_offered(d, A)) << "used least recently";
  EXPECT_TRUE(is_offered(d, B));
  EXPECT_EQ(d.match(A), (hit{16, 0})) << "L1 keeps it";
}

TEST(ExportedHost, WhatLostItsPlaceIsOfferedAgainWhenItIsUsed) {
  auto d = tree_driver{exporting()};
  for (const auto& prompt : {A, B, C, A}) {
    d.insert(prompt);
    d.finish();
  }
  EXPECT_TRUE(is_offered(d, A));
  EXPECT_FALSE(is_offered(d, B));
  EXPECT_TRUE(is_offered(d, C));
  EXPECT_EQ(d.backups, (counts{4, 4, 4, 4}));
}

TEST(ExportedHost, WhatLostItsPlaceIsOfferedAgainWhenItLeavesL1) {
  auto d = tree_driver{exporting()};
  for (const auto& prompt : {A, B, C}) {
    d.insert(prompt);
    d.finish();
  }
  d.match(A);
  d.evict_l2(16); // B has no copy any more.
  d.evict(16);    // B is the first to go, and saved.
  d.finish();
  EXPECT_TRUE(is_offered(d, B));
  EXPECT_EQ(d.match(B), (hit{0, 16}));
  EXPECT_EQ(d.backups, (counts{4, 4, 4, 4}));
}

TEST(ExportedHost, LeavesOfAPathGoFirst) {
  auto d = tree_driver{exporting()};
  d.insert(A + B);
  d.finish();
  d.insert(A + C);
  d.finish();
  EXPECT_TRUE(is_offered(d, A)) << "a path with a gap is of no use to others";
  EXPECT_TRUE(is_offered(d, C));
  EXPECT_FALSE(is_offered(d, B));
}

TEST(ExportedHost, WhatIsWrittenBackIsOfferedWithWhatIsAboveIt) {
  auto d = tree_driver{exporting(write_policy::write_back)};
  d.insert(A);
  d.insert(A + B);
  d.finish();
  EXPECT_FALSE(is_offered(d, A));
  d.evict(16);
  d.finish();
  EXPECT_TRUE(is_offered(d, A));
  EXPECT_TRUE(is_offered(d, B));
}

TEST(ExportedHost, TheStoreThatIsAttachedDecides) {
  auto options = exporting();
  options.storage_exports_l2 = false;
  auto d = tree_driver{options};
  for (const auto& prompt : {A, B, C}) {
    d.insert(prompt);
    d.finish();
  }
  EXPECT_TRUE(is_offered(d, A)) << "copies of what came later made room";
  d.tree.change_storage({storage_change::action::detach});
  d.tree.change_storage({storage_change::action::release});
  d.settle();
  d.tree.change_storage({storage_change::action::attach, "cluster", options.prefetch, true});
  d.settle();
  for (const auto& prompt : {B, C, D}) {
    d.insert(prompt);
    d.finish();
  }
  EXPECT_FALSE(is_offered(d, A));
  EXPECT_FALSE(is_offered(d, B));
  EXPECT_TRUE(is_offered(d, C));
  EXPECT_TRUE(is_offered(d, D));
}

} // namespace
} // namespace hicache
