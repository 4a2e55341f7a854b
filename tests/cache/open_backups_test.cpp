// Backups to L3: which nodes they write, under which names, and what their end does.

#include "base/limits.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/prefix/open_backups.hpp"
#include "tests/cache/part_tree.hpp"

#include <algorithm>
#include <numeric>
#include <string>

using namespace hicache;
using namespace hicache::test;

namespace {

using ids = std::vector<operation_id>;

tree_options with_l3(uint64_t limit_pages = UINT64_MAX) {
  auto options = part_options();
  options.storage_attached = true;
  options.backup_limit_pages = limit_pages;
  return options;
}

struct backer : part_tree {
  explicit backer(const tree_options& options = with_l3()) : part_tree(options) {}

  /// Begins to back up a new path of these pages.
  radix_node& back_up(std::string_view path, held where = held::l2) {
    auto& node = add(path, where);
    part.back_up_path(node);
    check();
    return node;
  }

  /// A step that says this of the backups in their order.
  void finish(const std::vector<int64_t>& stored) {
    part.finish(part.name(stored));
    check();
  }

  ids next() const { return {part.next().begin(), part.next().end()}; }

  ids dropped() {
    auto list = ids{};
    for (const auto& drop : take<drop_command>())
      list.push_back(drop.id);
    return list;
  }

  void check() const { part_tree::check(part); }

  open_backups part{tree, settings, effects};
};

/// A path of one page per node. u: in L2, 1: in L1, 2: in both; s: in L2 and stored, S: in L1 and
/// stored; p: in a backup; l: being loaded.
std::vector<radix_node*> path_of(part_tree& d, std::string_view states) {
  auto path = std::string{};
  auto nodes = std::vector<radix_node*>{};
  for (const auto state : states) {
    path += static_cast<char>('a' + nodes.size());
    const auto where = state == '1' || state == 'S' ? held::l1
                       : state == '2'               ? held::both
                                                    : held::l2;
    const auto l3 = state == 's' || state == 'S' ? l3_state::stored : l3_state::unknown;
    auto& node = d.add(path, where, l3);
    if (state == 'p')
      node_edit{d.tree, node}.begin_backup(77);
    nodes.push_back(&node);
  }
  for (auto i = size_t{0}; i < nodes.size(); ++i)
    if (states[i] == 'l')
      d.tree.set_l1(*nodes[i], d.tree.take_l1(1).value(), 5);
  return nodes;
}

} // namespace

// -- begin --------------------------------------------------------------------

TEST(OpenBackups, WriteTheFirstRunOfNodesThatL3Accepts) {
  struct example {
    std::string_view path;
    std::string_view written;
  };
  for (const auto& [path, written] : std::initializer_list<example>{
         {"uu", "xx"},
         {"suu", ".xx"},
         {"s", "."},
         {"Su", ".x"},
         {"1u", ".."},
         {"pu", ".."},
         {"21u", "x.."},
         {"usu", "x.."},
         {"lu", "x."},
         {"2llu", "xx.."},
       }) {
    SCOPED_TRACE(path);
    auto d = part_tree{with_l3()};
    auto part = open_backups{d.tree, d.settings, d.effects};
    const auto nodes = path_of(d, path);
    part.back_up_path(*nodes.back());
    auto found = std::string{};
    for (const auto* node : nodes)
      found += node->backup() == 1 ? 'x' : '.';
    EXPECT_EQ(found, written);
    EXPECT_EQ(d.effects.size(), written.find('x') == std::string_view::npos ? 0 : 1);
    EXPECT_EQ(part.waiting_pages(), std::ranges::count(written, 'x'));
  }
}

TEST(OpenBackups, BeginOnlyWithL3) {
  auto d = backer{};
  d.settings.is_stopped = true;
  d.back_up("ab");
  d.settings.is_stopped = false;
  d.settings.options.storage_attached = false;
  d.back_up("abcd");
  EXPECT_TRUE(d.part.empty());
  EXPECT_TRUE(d.effects.empty());
}

TEST(OpenBackups, NamePagesAndTheParentOfTheFirst) {
  const auto tenant = cache_namespace{"", "tenant"};
  auto d = backer{};
  d.add("ab", held::l2, l3_state::unknown, tenant);
  auto& end = d.add("abcdef", held::l2, l3_state::unknown, tenant);
  const auto seed = namespace_seed(tenant);
  const auto keys = hash_pages(*d.tokens_of("abcdef"), 2, &*seed);
  d.part.back_up_path(end);
  const auto& middle = d.tree.cut({&end, 3});
  d.finish({2});
  d.part.back_up_path(end);
  const auto commands = d.take<backup_command>();
  ASSERT_EQ(commands.size(), 2);
  EXPECT_EQ(commands[0].names->get(0, 6), keys);
  EXPECT_EQ(commands[0].names->before(0), page_key{});
  EXPECT_EQ(commands[0].tenant, tenant_of("tenant"));
  EXPECT_EQ(commands[1].names->get(0, 4), (std::vector<page_key>{keys.begin() + 2, keys.end()}));
  EXPECT_EQ(commands[1].names->before(0), keys[1]);
  auto pages = middle.l2_pages();
  pages.insert(pages.end(), end.l2_pages().begin(), end.l2_pages().end());
  EXPECT_EQ(*commands[1].l2_pages, pages);
}

TEST(OpenBackups, KeepThePathThatTheyDependOn) {
  auto d = backer{};
  auto nodes = path_of(d, "Su");
  d.part.back_up_path(*nodes[1]);
  d.check();
  EXPECT_EQ(nodes[0]->l1_locks(), 1) << "L2 lacks it, so L1 must keep it";
  EXPECT_EQ(d.tree.evict_l1(16) + d.tree.evict_l2(16), 0);
  d.finish({1});
  EXPECT_EQ(d.tree.evict_l2(16), 1);
  EXPECT_EQ(d.tree.evict_l1(16), 1);
}

TEST(OpenBackups, DropTheOldestBeyondTheLimit) {
  auto d = backer{with_l3(4)};
  d.back_up("ab");
  d.back_up("cd");
  EXPECT_TRUE(d.dropped().empty());
  d.back_up("efg");
  EXPECT_EQ(d.dropped(), (ids{1, 2}));
  EXPECT_EQ(d.part.waiting_pages(), 3);
  d.part.drop_all();
  EXPECT_EQ(d.dropped(), ids{3}) << "each once";
  EXPECT_EQ(d.part.waiting_pages(), 0);
  EXPECT_TRUE(d.part.in_flight());
  d.finish({2, 0, 0});
  EXPECT_TRUE(d.part.empty());
}

// -- end ----------------------------------------------------------------------

TEST(OpenBackups, StoreWholeNodesAndThenTheirOtherChildren) {
  auto d = backer{};
  auto nodes = path_of(d, "uuu");
  d.part.back_up_path(*nodes[2]);
  const auto& y = d.add("aby", held::l2);
  const auto& x = d.add("abx", held::l2);
  d.finish({-1});
  EXPECT_EQ(d.part.waiting_pages(), 3) << "some rank has not finished";
  d.finish({2});
  EXPECT_EQ(nodes[1]->l3(), l3_state::stored);
  EXPECT_EQ(nodes[2]->l3(), l3_state::unknown);
  EXPECT_EQ(y.backup(), 2) << "the older node is first";
  EXPECT_EQ(x.backup(), 3);
  d.finish({0, 1});
  EXPECT_EQ(y.l3(), l3_state::unknown);
  EXPECT_EQ(x.l3(), l3_state::stored);
  EXPECT_TRUE(d.part.empty());
}

TEST(OpenBackups, CompleteBothPartsOfANodeThatIsSplit) {
  auto d = backer{};
  auto& lower = d.back_up("abcd");
  const auto& upper = d.tree.cut({&lower, 1});
  d.check();
  d.finish({3});
  EXPECT_EQ(upper.l3(), l3_state::stored);
  EXPECT_EQ(lower.l3(), l3_state::unknown) << "L3 has only two of its three pages";
  EXPECT_TRUE(d.part.empty());
}

TEST(OpenBackups, WriteAgainWhatL3MayHaveEvictedOnceForEachLoss) {
  auto d = backer{};
  d.settings.now_ns = 100;
  auto& ab = d.back_up("ab");
  d.settings.now_ns = 200;
  d.finish({2});
  auto& abcd = d.back_up("abcd");
  d.finish({2});
  const auto states = [&] { return std::pair{ab.l3(), abcd.l3()}; };
  const auto after_loss = [&](int64_t lost_ns) {
    d.settings.lost_ns = lost_ns;
    d.part.doubt_path(abcd);
    d.check();
    return states();
  };
  const auto both = std::pair{l3_state::stored, l3_state::stored};
  EXPECT_EQ(after_loss(0), both);
  EXPECT_EQ(after_loss(99), both);
  d.settings.now_ns = 300;
  EXPECT_EQ(after_loss(100), (std::pair{l3_state::unknown, l3_state::stored}))
    << "the time is that of the backup's begin";
  d.part.back_up_path(abcd);
  EXPECT_EQ(after_loss(250), (std::pair{l3_state::pending, l3_state::unknown}));
  d.finish({2});
  d.finish({2});
  EXPECT_EQ(states(), both);
  EXPECT_EQ(after_loss(299), both) << "both were written after it";
  EXPECT_EQ(d.take<backup_command>().size(), 4u);
}

TEST(OpenBackups, PartsOfANodeAreAsOldAsTheNodeAndJoinedOnesAsTheOlderOne) {
  auto d = backer{};
  d.settings.now_ns = 100;
  auto& lower = d.back_up("abcd", held::both);
  d.finish({4});
  auto& upper = d.tree.cut({&lower, 1});
  EXPECT_EQ(upper.stored_ns(), 100);
  EXPECT_EQ(lower.stored_ns(), 100);
  node_edit{d.tree, upper}.end_backup(l3_state::stored, 70);
  EXPECT_EQ(d.tree.evict_l1(4), 4);
  d.tree.join_nodes();
  ASSERT_EQ(lower.pages(), 4u);
  EXPECT_EQ(lower.stored_ns(), 70);
}

TEST(OpenBackups, IgnoreWhatAnEarlierL3Took) {
  auto d = backer{};
  const auto& ab = d.back_up("ab");
  ++d.settings.storage_epoch;
  d.finish({2});
  EXPECT_EQ(ab.l3(), l3_state::unknown);
  EXPECT_TRUE(d.part.empty());
}

TEST(OpenBackups, AfterTheDeadlineHoldTheirPagesAndNothingElse) {
  auto d = backer{};
  auto& ab = d.back_up("ab");
  d.back_up("cd");
  d.finish({backup_given_up, -1});
  EXPECT_EQ(d.dropped(), ids{1});
  EXPECT_EQ(d.next(), (ids{2, 1})) << "those that may take long come last";
  EXPECT_EQ(d.part.quarantined_pages(), 2);
  EXPECT_EQ(d.part.waiting_pages(), 2);
  EXPECT_EQ(ab.l3(), l3_state::unknown);
  d.part.back_up_path(ab);
  EXPECT_EQ(d.next(), (ids{2, 3, 1}));
  d.finish({2, -1, backup_given_up});
  EXPECT_TRUE(d.part.in_flight());
  // The late end of the first says nothing about the third, which writes the same pages.
  d.finish({-1, 2});
  EXPECT_EQ(ab.backup(), 3);
  EXPECT_EQ(d.part.quarantined_pages(), 0);
  d.finish({2});
  EXPECT_EQ(ab.l3(), l3_state::stored);
  EXPECT_EQ(d.tree.evict_l2(16), 4);
}

TEST(OpenBackups, AfterTheDeadlineTheirNodesMayLeaveBothTiers) {
  auto options = with_l3();
  options.l1_pages = 2;
  options.l2_pages = 4;
  auto d = backer{options};
  const auto path = path_of(d, "SSuu");
  d.part.back_up_path(*path.back());
  EXPECT_EQ(d.tree.evict_l1(2) + d.tree.evict_l2(2), 0) << "L2 needs their ancestors in L1";
  d.finish({backup_given_up});
  EXPECT_EQ(d.tree.l2_available(), 2) << "all but the pages that the store may read";
  EXPECT_EQ(d.tree.evict_l1(2), 2);
  EXPECT_EQ(d.tree.node_count(), 0);
  EXPECT_EQ(d.tree.l2_pool().free(), 2);
  EXPECT_FALSE(d.tree.take_l2(3));
  d.finish({2});
  EXPECT_EQ(d.tree.l2_pool().free(), 4);
  d.check();
}

TEST(OpenBackups, AfterTheDeadlineRoomIsMadeAmongOtherPages) {
  auto options = with_l3();
  options.l2_pages = 4;
  auto d = backer{options};
  d.back_up("ab");
  d.add("c", held::l2);
  d.add("d", held::l2);
  d.finish({backup_given_up});
  EXPECT_FALSE(d.tree.take_l2(3));
  EXPECT_EQ(d.tree.node_count(), 3) << "nothing is evicted in vain";
  const auto taken = d.tree.take_l2(2);
  ASSERT_TRUE(taken);
  EXPECT_EQ(d.cached("ab"), 0) << "the oldest go, though their pages stay";
  d.tree.l2_pool().give_back(*taken);
  d.finish({0});
  EXPECT_EQ(d.tree.l2_pool().free(), 4);
  d.check();
}

TEST(OpenBackups, AStepEndsTheOldestOnes) {
  auto options = with_l3();
  options.l2_pages = 100;
  auto d = backer{options};
  for (auto i = 0; i < 70; ++i)
    d.back_up(std::string(1, static_cast<char>('0' + i)));
  auto oldest = ids(limits::step_backups);
  std::iota(oldest.begin(), oldest.end(), 1);
  EXPECT_EQ(d.next(), oldest);
  d.finish(std::vector<int64_t>(limits::step_backups, 1));
  EXPECT_EQ(d.next(), (ids{65, 66, 67, 68, 69, 70}));
}

// -- state --------------------------------------------------------------------

TEST(OpenBackups, DigestFollowsTheState) {
  expect_digest_follows<backer>({[](backer& d) { d.back_up("ab"); },
                                 [](backer& d) { d.back_up("cd"); },
                                 [](backer& d) {
                                   d.finish({backup_given_up, -1});
                                 },
                                 [](backer& d) { d.part.drop_all(); },
                                 [](backer& d) {
                                   d.finish({2, -1});
                                 },
                                 [](backer& d) { d.finish({0}); }});
}

TEST(OpenBackupsDeathTest, CheckFindsMorePagesThanTheLimit) {
  auto d = backer{};
  d.back_up("ab");
  d.settings.options.backup_limit_pages = 1;
  EXPECT_DEATH(d.part.check_invariants(), "backup_limit_pages");
}

TEST(OpenBackupsDeathTest, NoMorePagesAreStoredThanWereWritten) {
  auto d = backer{};
  d.back_up("ab");
  EXPECT_DEATH(d.finish({3}), "stored <= backup.page_count");
  EXPECT_DEATH(d.finish({}), "next");
}
