// Who is evicted first: the seven policies, one of an engine's own, priorities, references; and
// what counts as use. Page 4.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

using namespace hicache;
using namespace hicache::test;

namespace {

const auto A = range(1, 5);
const auto B = range(101, 105);
const auto C = range(201, 205);

tree_options with_policy(eviction_policy_ptr policy) {
  return {.page_size = 4, .l1_pages = 16, .eviction = std::move(policy)};
}

eviction_policy_ptr policy(std::string_view name) {
  return make_eviction_policy(name).value();
}

bool holds(const tree_driver& d, const tokens_t& tokens) {
  const auto nodes = d.tree.nodes();
  return std::ranges::any_of(nodes, [&](const node_view& node) { return node.tokens == tokens; });
}

/// Evicts page by page and writes down which of A, B, C goes when.
std::string order_of_eviction(tree_driver& d) {
  auto order = std::string{};
  auto left = std::vector<std::pair<char, tokens_t>>{{'A', A}, {'B', B}, {'C', C}};
  while (!left.empty()) {
    EXPECT_EQ(d.evict(1), 4);
    const auto gone
      = std::ranges::find_if(left, [&](const auto& each) { return !holds(d, each.second); });
    if (gone == left.end())
      return order + '?';
    order += gone->first;
    left.erase(gone);
  }
  return order;
}

/// Created in the order A, B, C; used last in the order C, A, B; A has two hits, the others one.
std::string order_under(eviction_policy_ptr which) {
  auto d = tree_driver{with_policy(std::move(which))};
  d.insert(A);
  d.insert(B);
  d.insert(C);
  d.insert(A);
  d.match(B);
  return order_of_eviction(d);
}

/// Evicts what has most hits first.
class most_hits_first : public eviction_policy {
public:
  std::string_view name() const noexcept override { return "most_hits_first"; }

  eviction_rank rank(const node_use& use) const noexcept override {
    return {~use.hits, use.created};
  }
};

} // namespace

TEST(EvictionPolicy, OrdersBySevenRules) {
  EXPECT_EQ(order_under(policy("lru")), "CAB");
  EXPECT_EQ(order_under(policy("lfu")), "CBA");
  EXPECT_EQ(order_under(policy("fifo")), "ABC");
  EXPECT_EQ(order_under(policy("mru")), "BAC");
  EXPECT_EQ(order_under(policy("filo")), "CBA");
  EXPECT_EQ(order_under(policy("slru")), "CBA");
  EXPECT_EQ(order_under(policy("priority")), "CAB");
}

TEST(EvictionPolicy, EngineBringsItsOwn) {
  EXPECT_EQ(order_under(std::make_shared<most_hits_first>()), "ABC");
}

TEST(EvictionPolicy, IsFoundByNameWithoutRegardToCase) {
  EXPECT_EQ(policy("SLRU")->name(), "slru");
  const auto unknown = make_eviction_policy("random");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ec::invalid_argument);
  EXPECT_EQ(unknown.error().detail, "no eviction policy is called \"random\"; there are lru, lfu, "
                                    "fifo, mru, filo, priority, slru");
}

// Case L12: (hits, last use) sorted by segmented LRU with two hits as the threshold.
TEST(EvictionPolicy, SegmentedLruProtectsFromTheSecondHit) {
  const auto rank = [](uint64_t hits, uint64_t last) {
    return policy("slru")->rank({.last_access = last, .hits = hits});
  };
  EXPECT_LT(rank(0, 2), rank(0, 10));
  EXPECT_LT(rank(0, 10), rank(5, 1));
  EXPECT_LT(rank(5, 1), rank(3, 8));
  EXPECT_LT(rank(1, 9), rank(2, 1));
}

TEST(EvictionPolicy, LowPriorityGoesFirst) {
  auto d = tree_driver{with_policy(policy("priority"))};
  d.insert(A, {}, {.priority = 10});
  d.insert(C);
  d.insert(B, {}, {.priority = -1});
  EXPECT_EQ(order_of_eviction(d), "BCA");
}

TEST(EvictionPolicy, PriorityIsInheritedByParentsAndBySplitParts) {
  auto d = tree_driver{with_policy(policy("priority"))};
  d.insert(A, {}, {.priority = 1});
  d.insert(B, {}, {.priority = 2});
  d.insert(A + C, {}, {.priority = 3});
  d.insert(range(1, 3) + range(1, 3) + B, {}, {.priority = 0});
  for (const auto& node : d.tree.nodes()) {
    if (node.tokens == A || node.tokens == C) {
      EXPECT_EQ(node.use.priority, 3);
    } else if (node.tokens == B) {
      EXPECT_EQ(node.use.priority, 2);
    } else {
      EXPECT_EQ(node.use.priority, 0);
    }
  }
  d.match(A + tokens_t{C[0], 0, 0, 0});
  d.insert(A + B + C, {}, {.priority = 7});
  d.match(A + B);
  for (const auto& node : d.tree.nodes())
    if (node.tokens == B && node.parent != 0) {
      EXPECT_EQ(node.use.priority, 7);
    }
}

TEST(EvictionPolicy, OnlyInsertsAreHits) {
  auto d = tree_driver{with_policy(policy("lfu"))};
  d.insert(A);
  for (auto i = 0; i < 5; ++i)
    d.match(A);
  EXPECT_EQ(d.tree.nodes().front().use.hits, 1);
  d.insert(A + B);
  EXPECT_EQ(d.tree.nodes().front().use.hits, 2);
  EXPECT_EQ(d.tree.nodes().back().use.hits, 1);
  d.insert(A + B, {}, {.chunked = true});
  EXPECT_EQ(d.tree.nodes().front().use.hits, 2);
}

TEST(EvictionPolicy, PoliciesOrderTheHostToo) {
  auto options = with_policy(policy("mru"));
  options.l2_pages = 8;
  auto d = tree_driver{options};
  for (const auto& tokens : {A, B, C})
    d.insert(tokens);
  d.finish();
  EXPECT_EQ(d.evict(12), 12);
  EXPECT_EQ(d.evict_l2(4), 4);
  EXPECT_TRUE(holds(d, A) && holds(d, B) && !holds(d, C));
}

// -- references ---------------------------------------------------------------

// Case N6, at the level of the tree.
TEST(References, ReferencedPrefixIsEvictedLast) {
  auto d = tree_driver{with_policy(lru_policy())};
  d.insert(A);
  ASSERT_TRUE(d.tree.refer(d.last_insert.node));
  d.insert(B);
  d.insert(C);
  EXPECT_EQ(order_of_eviction(d), "BCA");
}

TEST(References, DroppedReferenceCountsNoMore) {
  auto d = tree_driver{with_policy(lru_policy())};
  d.insert(A);
  const auto first = d.tree.refer(d.last_insert.node).value();
  const auto second = d.tree.refer(d.last_insert.node).value();
  d.insert(B);
  d.insert(C);
  d.tree.drop_reference(first);
  d.tree.check_invariants();
  d.tree.drop_reference(second);
  d.tree.check_invariants();
  EXPECT_EQ(order_of_eviction(d), "ABC");
}

TEST(References, FollowWhatIsLeftOfThePrefix) {
  auto d = tree_driver{with_policy(lru_policy())};
  d.insert(A);
  d.insert(A + C);
  const auto reference = d.tree.refer(d.last_insert.node).value();
  d.insert(B);
  EXPECT_EQ(d.evict(8), 8);
  EXPECT_FALSE(holds(d, B) || holds(d, C));
  EXPECT_TRUE(holds(d, A));
  d.insert(B);
  EXPECT_EQ(d.evict(4), 4);
  EXPECT_TRUE(holds(d, A)) << "the reference is to what is left";
  d.tree.drop_reference(reference);
  d.insert(B);
  EXPECT_EQ(d.evict(4), 4);
  EXPECT_FALSE(holds(d, A));
  EXPECT_EQ(d.evict(4), 4);
  d.tree.drop_reference(reference);
  EXPECT_FALSE(d.tree.refer(1));
}
