// What L3 has evicted and a request uses is offered to L3 again.

#include "tests/cache/storage_steps.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

using namespace hicache::test;

tree_options storage() {
  auto options = with_storage(prefetch_policy::wait_complete);
  options.l1_pages = 32;
  options.l2_pages = 40;
  return options;
}

/// A step that says that L3 has evicted what was last used `age_ns` ago.
void lose(tree_driver& d, int64_t age_ns) {
  auto facts = d.offer();
  facts.loss_age_ns = age_ns;
  d.apply(facts);
}

TEST(LostPages, AHotOneIsOfferedAgainAndAColdOneIsNot) {
  auto d = tree_driver{storage()};
  d.now_ns = 10;
  d.poll();
  d.insert(A);
  d.insert(B);
  d.finish();
  EXPECT_EQ(d.backups, (counts{4, 4}));
  d.store.clear();
  d.now_ns = 50;
  d.insert(A);
  d.finish();
  EXPECT_FALSE(is_in_store(d, A)) << "nobody said so";
  lose(d, 40);
  EXPECT_EQ(d.backups.size(), 2u) << "only at their next use";
  d.insert(A);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
  EXPECT_FALSE(is_in_store(d, B));
  for (auto i = 0; i < 3; ++i) {
    lose(d, 20);
    d.insert(A);
    d.finish();
  }
  EXPECT_EQ(d.backups, (counts{4, 4, 4})) << "it was stored after what was lost";
  d.tree.check_invariants();
}

TEST(LostPages, OneThatOnlyL1HasIsStagedToBeOfferedAgain) {
  auto d = tree_driver{storage()};
  d.now_ns = 10;
  d.poll();
  d.insert(A);
  d.finish();
  d.store.clear();
  d.now_ns = 50;
  static_cast<void>(d.tree.evict({cache_tier::l2, 1000}));
  lose(d, 30);
  d.insert(A);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
}

TEST(LostPages, AFetchedOneIsAsOldAsItsFetch) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  d.now_ns = 10;
  d.poll();
  const auto request = d.open(A);
  ASSERT_GT(prefetch(d, request), 0);
  d.now_ns = 50;
  d.run_fetches();
  d.poll();
  d.close(request);
  lose(d, 45);
  d.insert(A);
  d.finish();
  EXPECT_TRUE(d.backups.empty()) << "it was read after what was lost";
  lose(d, 40);
  d.insert(A);
  d.finish();
  EXPECT_EQ(d.backups, counts{4});
}

} // namespace
} // namespace hicache
