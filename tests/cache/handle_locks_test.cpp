// Locks that an engine holds by node id.

#include "base/limits.hpp"
#include "cache/prefix/handle_locks.hpp"
#include "tests/cache/part_tree.hpp"

using namespace hicache;
using namespace hicache::test;

namespace {

struct lock_holder : part_tree {
  using part_tree::part_tree;

  void check() const { part_tree::check(part); }

  handle_locks part{tree};
};

ec code(const result<void>& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

} // namespace

TEST(HandleLocks, LockThePathOnTheTiersThatHoldIt) {
  auto d = lock_holder{};
  const auto& ab = d.add("ab", held::l1);
  const auto& abcd = d.add("abcd", held::l2);
  ASSERT_TRUE(d.part.lock(abcd.id()));
  EXPECT_EQ(ab.l1_locks(), 1);
  EXPECT_EQ(abcd.l1_locks(), 0);
  EXPECT_EQ(abcd.l2_locks(), 1);
  EXPECT_EQ(d.tree.evict_l1(16) + d.tree.evict_l2(16), 0);
  d.check();
  ASSERT_TRUE(d.part.unlock(abcd.id()));
  d.check();
  EXPECT_EQ(d.tree.evict_l1(16), 2);
  EXPECT_EQ(d.tree.node_count(), 0);
}

TEST(HandleLocks, EndOldestFirstWhateverTierTheyAreOn) {
  auto d = lock_holder{};
  auto& ab = d.add("ab", held::l2);
  ASSERT_TRUE(d.part.lock(ab.id()));
  d.tree.set_l1(ab, d.tree.take_l1(2).value());
  ASSERT_TRUE(d.part.lock(ab.id()));
  EXPECT_EQ(d.part.count(), 2);
  ASSERT_TRUE(d.part.unlock(ab.id()));
  EXPECT_EQ(ab.l1_locks(), 1);
  EXPECT_EQ(ab.l2_locks(), 0);
  d.check();
  ASSERT_TRUE(d.part.unlock(ab.id()));
  EXPECT_EQ(d.part.count(), 0);
  d.check();
}

TEST(HandleLocks, CoverBothPartsOfANodeThatIsSplit) {
  auto d = lock_holder{};
  const auto& abcd = d.add("abcd", held::both);
  ASSERT_TRUE(d.part.lock(abcd.id()));
  d.add("abxy", held::l1);
  EXPECT_EQ(d.tree.evict_l1(16), 2);
  EXPECT_EQ(d.cached("abcd"), 4);
  d.check();
  ASSERT_TRUE(d.part.unlock(abcd.id()));
  d.check();
}

TEST(HandleLocks, RefuseNodesThatAreGoneOrNotLocked) {
  auto d = lock_holder{};
  const auto id = d.add("ab", held::l1).id();
  EXPECT_EQ(code(d.part.unlock(id)), ec::unknown_id);
  d.tree.evict_l1(2);
  EXPECT_EQ(code(d.part.lock(id)), ec::unknown_id);
  EXPECT_EQ(d.part.count(), 0);
}

TEST(HandleLocks, AreLimited) {
  auto d = lock_holder{};
  const auto id = d.add("ab", held::l1).id();
  while (d.part.count() < limits::handle_locks)
    ASSERT_TRUE(d.part.lock(id));
  EXPECT_EQ(code(d.part.lock(id)), ec::limit_reached);
  EXPECT_EQ(d.part.count(), limits::handle_locks);
  d.check();
}
