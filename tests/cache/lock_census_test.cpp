// The locks that holders account for, beside those that the tree counts.

#include "tests/cache/part_tree.hpp"

#include <random>
#include <string>

using namespace hicache;
using namespace hicache::test;

namespace {

/// Holds locks on random paths.
struct random_holder {
  void lock(radix_tree& tree, radix_node& end, bool is_l1) {
    is_l1 ? tree.lock_l1(end) : tree.lock_l2(end);
    (is_l1 ? l1_ends : l2_ends).push_back(&end);
  }

  void unlock(radix_tree& tree, bool is_l1) {
    auto& ends = is_l1 ? l1_ends : l2_ends;
    if (ends.empty())
      return;
    is_l1 ? tree.unlock_l1(*ends.front()) : tree.unlock_l2(*ends.front());
    ends.erase(ends.begin());
  }

  void count_locks(lock_census& census) const {
    for (const auto* end : l1_ends)
      census.add(end, nullptr);
    for (const auto* end : l2_ends)
      census.add(nullptr, end);
  }

  std::vector<radix_node*> l1_ends;
  std::vector<radix_node*> l2_ends;
};

} // namespace

TEST(LockCensus, CountsEachPathAndEachTierApart) {
  auto d = part_tree{};
  const auto& ab = d.add("ab", held::both);
  const auto& abcd = d.add("abcd", held::both);
  const auto& abx = d.add("abx", held::both);
  auto census = lock_census{};
  census.add(&abcd, &ab);
  census.add(&abx, nullptr);
  EXPECT_EQ(census.l1_locks(*ab.parent()), 2);
  EXPECT_EQ(census.l1_locks(ab), 2);
  EXPECT_EQ(census.l1_locks(abcd), 1);
  EXPECT_EQ(census.l1_locks(abx), 1);
  EXPECT_EQ(census.l2_locks(ab), 1);
  EXPECT_EQ(census.l2_locks(abcd), 0);
}

TEST(LockCensus, AgreesWithATreeWhoseNodesAreSplit) {
  for (auto seed = 0u; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = std::mt19937{seed};
    auto d = part_tree{};
    auto holder = random_holder{};
    for (const auto* path : {"abcd", "abcdef", "abxy", "qrst"})
      d.add(path, held::both);
    for (auto turn = 0; turn < 60; ++turn) {
      const auto nodes = d.tree.sorted_nodes();
      auto& node = *nodes[random() % nodes.size()];
      const auto is_l1 = random() % 2 == 0;
      if (const auto what = random() % 8; what < 4)
        holder.lock(d.tree, node, is_l1);
      else if (what < 7)
        holder.unlock(d.tree, is_l1);
      else if (node.pages() > 1)
        d.tree.cut({&node, node.first() + 1});
      d.check(holder);
    }
  }
}
