// The guard through which other classes change a node: sums, eviction orders and digest of the tree
// follow.

#include "tests/cache/part_tree.hpp"

#include <random>
#include <string>

using namespace hicache;
using namespace hicache::test;

namespace {

/// Nodes rank by priority, so that each edit may change the eviction order.
tree_options by_priority() {
  auto options = part_options();
  options.eviction = make_eviction_policy("priority").value();
  return options;
}

/// Edits random nodes as the parts of a prefix_cache do, and undoes edits.
class random_editor {
public:
  explicit random_editor(uint32_t seed) : random_(seed) {
    d_.add("abcd", held::both);
    d_.add("abcdef", held::l1);
    d_.add("abxy", held::both, l3_state::stored);
    d_.add("abxyz", held::l2);
  }

  void edit() {
    auto& node = pick();
    const auto before = d_.tree.totals();
    switch (random_() % 4) {
      case 0: {
        const auto old = node.use().priority;
        node_edit{d_.tree, node}.set_priority(old + 1);
        EXPECT_NE(d_.tree.totals().digest, before.digest);
        node_edit{d_.tree, node}.set_priority(old);
        EXPECT_EQ(d_.tree.totals(), before);
        node_edit{d_.tree, node}.set_priority(static_cast<int32_t>(random_() % 5));
        break;
      }
      case 1:
        if (node.backup() != 0)
          end_backup(node);
        else if (node.l2_resident())
          begin_backup(node);
        break;
      case 2:
        if (node.write() != 0)
          end_write(node);
        else if (node.in_l1() && node.l2_pages().empty())
          begin_write(node);
        break;
      case 3:
        if (node.pages() > 1 && node.write() == 0 && node.backup() == 0)
          d_.tree.cut({&node, node.first() + 1});
        break;
    }
    d_.tree.check_invariants();
  }

private:
  radix_node& pick() {
    while (true) {
      const auto nodes = d_.tree.sorted_nodes();
      if (auto* node = nodes[random_() % nodes.size()]; !node->is_root())
        return *node;
    }
  }

  void begin_backup(radix_node& node) {
    d_.tree.lock_l1(node.l1_end());
    d_.tree.lock_l2(node);
    const auto before = d_.tree.totals();
    const auto l3 = node.l3();
    node_edit{d_.tree, node}.begin_backup(++last_id_);
    EXPECT_NE(d_.tree.totals().digest, before.digest);
    node_edit{d_.tree, node}.end_backup(l3);
    EXPECT_EQ(d_.tree.totals(), before);
    node_edit{d_.tree, node}.begin_backup(++last_id_);
  }

  void end_backup(radix_node& node) {
    node_edit{d_.tree, node}.end_backup(random_() % 2 == 0 ? l3_state::stored : l3_state::unknown);
    d_.tree.unlock_l2(node);
    d_.tree.unlock_l1(node.l1_end());
  }

  void begin_write(radix_node& node) {
    auto pages = d_.tree.take_l2(node.pages());
    if (!pages)
      return;
    d_.tree.lock_l1(node);
    d_.tree.lock_l2(node);
    const auto before = d_.tree.totals();
    node_edit{d_.tree, node}.begin_write(++last_id_, std::move(*pages));
    EXPECT_NE(d_.tree.totals().digest, before.digest);
  }

  void end_write(radix_node& node) {
    random_() % 2 == 0 ? d_.tree.finish_write(node) : d_.tree.cancel_write(node);
    d_.tree.unlock_l1(node);
    d_.tree.unlock_l2(node);
  }

  std::mt19937 random_;
  part_tree d_{by_priority()};
  operation_id last_id_ = 0;
};

/// An operation that may give up halfway.
bool begin_backup(part_tree& d, radix_node& node, int32_t priority) {
  auto edit = node_edit{d.tree, node};
  edit.begin_backup(7);
  if (priority < 0)
    return false;
  edit.set_priority(priority);
  return true;
}

} // namespace

TEST(NodeEdit, KeepsTheTreesSumsAndDigestUpToDate) {
  for (auto seed = 0u; seed < 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto editor = random_editor{seed};
    for (auto i = 0; i < 80; ++i)
      editor.edit();
  }
}

TEST(NodeEdit, MovesTheNodeInTheEvictionOrder) {
  auto d = part_tree{by_priority()};
  auto& ab = d.add("ab", held::l1);
  d.add("xy", held::l1);
  node_edit{d.tree, ab}.set_priority(1);
  d.tree.evict_l1(2);
  EXPECT_EQ(d.cached("ab"), 2);
  EXPECT_EQ(d.cached("xy"), 0);
}

TEST(NodeEdit, CoversAnEarlyReturn) {
  auto d = part_tree{};
  auto& ab = d.add("ab", held::both);
  d.tree.lock_l2(ab);
  const auto before = d.tree.digest();
  EXPECT_FALSE(begin_backup(d, ab, -1));
  EXPECT_NE(d.tree.digest(), before);
  d.tree.check_invariants();
}

TEST(NodeEditDeathTest, TheTreeIsWrongWhileANodeIsEdited) {
  auto d = part_tree{};
  auto& ab = d.add("ab", held::both);
  auto edit = node_edit{d.tree, ab};
  edit.set_priority(1);
  EXPECT_DEATH(d.tree.check_invariants(), "desired_record");
}
