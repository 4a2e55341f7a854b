// Copies between L1 and L2: which nodes are written and loaded, what their end does, and staging.

#include "cache/prefix/open_copies.hpp"
#include "tests/cache/part_tree.hpp"

using namespace hicache;
using namespace hicache::test;

namespace {

using pages = std::vector<page_index>;

tree_options with_l3(uint32_t l2_pages) {
  auto options = part_options();
  options.l2_pages = l2_pages;
  options.storage_attached = true;
  return options;
}

pages operator+(pages a, const pages& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct copier : part_tree {
  explicit copier(const tree_options& options = part_options()) : part_tree(options) {
    tree.set_save([this](radix_node& node, pages l2) { part.write(node, std::move(l2)); },
                  [](const radix_node&) { return true; });
  }

  /// A node that was inserted `hits` times.
  radix_node& used(std::string_view path, held where, uint64_t hits) {
    auto& node = add(path, where);
    tree.touch(node, hits);
    return node;
  }

  layer_progress_ptr load(radix_node& end) {
    return part.load(end, tree.take_l1(end.end() - end.l1_end().end()).value());
  }

  void finish_writes(uint64_t done, bool last_failed = false) {
    part.finish_writes(done, last_failed);
    check();
  }

  void finish_loads(uint64_t done, bool last_failed = false) {
    part.finish_loads(done, last_failed, [this](radix_node& top) {
      discarded.push_back(top.id());
      tree.discard(top);
    });
    check();
  }

  void check() const { part_tree::check(backups, part); }

  open_backups backups{tree, settings, effects};
  open_copies part{tree, backups, settings, effects};
  /// Nodes whose load failed.
  std::vector<node_id> discarded;
};

} // namespace

// -- writes -------------------------------------------------------------------

TEST(OpenCopies, WriteWhatL2LacksRootFirst) {
  auto d = copier{};
  d.add("ab", held::both);
  auto& cd = d.add("abcd", held::l1);
  auto& ef = d.used("abcdef", held::l1, 1);
  EXPECT_EQ(d.part.write_path(ef, 1, false), 4);
  const auto writes = d.take<write_command>();
  ASSERT_EQ(writes.size(), 1);
  EXPECT_EQ(*writes[0].l1_pages, cd.l1_pages() + ef.l1_pages());
  EXPECT_EQ(*writes[0].l2_pages, cd.l2_pages() + ef.l2_pages());
  EXPECT_FALSE(cd.l2_resident());
  EXPECT_EQ(d.tree.evict_l1(16), 0);
  EXPECT_EQ(d.part.write_path(ef, 1, false), 0) << "it is already being written";
  d.check();
  d.finish_writes(1);
  EXPECT_TRUE(cd.l2_resident() && ef.l2_resident());
  EXPECT_EQ(d.tree.evict_l1(16), 6);
}

TEST(OpenCopies, WriteNoNodeBelowOneWithFewerHits) {
  auto d = copier{};
  d.used("ab", held::l1, 1);
  auto& abcd = d.used("abcd", held::l1, 1); // A second hit of ab.
  EXPECT_EQ(d.part.write_path(abcd, 3, false), 0);
  EXPECT_EQ(d.part.write_path(abcd, 2, false), 2);
  EXPECT_EQ(abcd.write(), 0);
  d.check();
}

TEST(OpenCopies, EvictForAWriteOnlyIfAllowedOrPinnedOrExported) {
  for (const auto is_exported : {false, true}) {
    auto options = part_options();
    options.l2_pages = 4;
    options.storage_exports_l2 = is_exported;
    auto d = copier{options};
    d.add("wxyz", held::l2);
    auto& a = d.add("a", held::l1);
    EXPECT_EQ(d.part.write_path(a, 0, false), is_exported ? 1 : 0);
    EXPECT_EQ(d.part.write_path(a, 0, true), is_exported ? 0 : 1);
    auto& b = d.add("b", held::l1);
    d.tree.pin(b);
    EXPECT_EQ(d.part.write_path(b, 0, false), 1);
    EXPECT_EQ(d.cached("wxyz"), 2);
    d.tree.unpin(b);
    d.finish_writes(2);
    EXPECT_EQ(d.part.write_path(d.add("acdef", held::l1), 0, true), 0) << "the copy of a must stay";
    d.check();
  }
}

TEST(OpenCopies, EndInOrderAndTheLastMayFail) {
  auto d = copier{};
  auto& a = d.add("ab", held::l1);
  auto& b = d.add("abcd", held::l1);
  auto& c = d.add("xy", held::l1);
  for (auto* node : {&a, &b, &c})
    EXPECT_EQ(d.part.write_path(*node, 0, false), 2);
  EXPECT_EQ(d.tree.l2_pool().free(), 10);
  d.finish_writes(2, true);
  EXPECT_TRUE(a.l2_resident());
  EXPECT_TRUE(b.l2_pages().empty());
  EXPECT_EQ(c.write(), 3);
  EXPECT_EQ(d.tree.l2_pool().free(), 12);
  EXPECT_TRUE(d.part.in_flight());
  d.finish_writes(3);
  EXPECT_FALSE(d.part.in_flight());
}

TEST(OpenCopies, PagesLeaveL1WithTheEndOfTheirWriteEvenIfItFails) {
  for (const auto fails : {false, true}) {
    auto options = part_options();
    options.l1_pages = 4;
    auto d = copier{options};
    d.add("abcd", held::l1);
    EXPECT_FALSE(d.tree.take_l1(2));
    EXPECT_EQ(d.take<write_command>().size(), 1);
    EXPECT_EQ(d.tree.pending_write_backs(), 2);
    d.check();
    d.finish_writes(1, fails);
    EXPECT_EQ(d.tree.l1_pool().free(), 2);
    EXPECT_EQ(d.cached("abcd"), fails ? 2 : 4);
  }
}

// -- loads --------------------------------------------------------------------

TEST(OpenCopies, LoadTheL2PartOfAPath) {
  auto d = copier{};
  auto& ab = d.add("ab", held::both);
  auto& cd = d.add("abcd", held::l2);
  auto& ef = d.add("abcdef", held::l2);
  const auto first = d.load(cd);
  const auto second = d.load(ef);
  const auto loads = d.take<load_command>();
  ASSERT_EQ(loads.size(), 2);
  EXPECT_EQ(*loads[1].l1_pages, ef.l1_pages());
  EXPECT_EQ(*loads[1].l2_pages, ef.l2_pages());
  EXPECT_EQ(loads[1].progress, second);
  d.check();
  EXPECT_EQ(d.part.progress_on(ab), nullptr);
  EXPECT_EQ(d.part.progress_on(cd), first);
  EXPECT_EQ(d.part.progress_on(ef), second) << "the latest on the path ends last";
  EXPECT_EQ(d.tree.evict_l1(16) + d.tree.evict_l2(16), 0);
  d.finish_loads(1);
  EXPECT_EQ(d.part.progress_on(cd), nullptr);
  EXPECT_EQ(d.part.progress_on(ef), second);
  d.finish_loads(2);
  EXPECT_EQ(d.part.progress_on(ef), nullptr);
  EXPECT_EQ(d.tree.evict_l1(16), 6);
}

TEST(OpenCopies, AFailedLoadDiscardsItsPagesAndWhatIsBelow) {
  auto d = copier{};
  d.add("ab", held::l1);
  const auto cd = d.add("abcd", held::l2).id();
  auto& ef = d.add("abcdef", held::l2);
  auto& gh = d.add("abcdefgh", held::l2);
  d.load(ef);
  d.load(gh);
  d.finish_loads(1, true);
  EXPECT_EQ(d.discarded, std::vector<node_id>{cd});
  EXPECT_EQ(d.cached("abcdefgh"), 2);
  EXPECT_EQ(d.tree.node_count(), 4) << "the second load still holds them";
  d.finish_loads(2);
  EXPECT_EQ(d.tree.node_count(), 1);
  EXPECT_EQ(d.tree.l1_pool().free(), 14);
  EXPECT_EQ(d.tree.l2_pool().free(), 16);
}

// -- staging ------------------------------------------------------------------

TEST(OpenCopies, StageAPathWithinTheShareOfL2) {
  auto d = copier{with_l3(192)}; // Two pages at a time.
  auto& abcd = d.used("abcd", held::l1, 1);
  d.part.want_staged(abcd);
  for (const auto* part : {"ab", "cd"}) {
    d.part.stage();
    d.part.stage();
    const auto writes = d.take<write_command>();
    ASSERT_EQ(writes.size(), 1) << part;
    EXPECT_EQ(writes[0].l1_pages->size(), 2);
    d.finish_writes(writes[0].id);
    d.part.stage();
    EXPECT_TRUE(d.take<write_command>().empty()) << "L3 does not have " << part << " yet";
    ASSERT_EQ(d.take<backup_command>().size(), 1);
    d.backups.finish(d.backups.name(std::vector<int64_t>{2}));
  }
  EXPECT_EQ(abcd.l3(), l3_state::stored);
  d.part.stage();
  EXPECT_EQ(d.part.digest(), (std::array<uint64_t, 5>{2, 2, 0, 0, 0}));
  d.check();
}

TEST(OpenCopies, StageNothingThatL3WouldRefuse) {
  auto d = copier{with_l3(960)};
  const auto unstaged = [&](radix_node& end) {
    d.part.want_staged(end);
    d.part.stage();
    return d.take<write_command>().size();
  };
  d.used("ab", held::l1, 0);
  EXPECT_EQ(unstaged(d.used("ab12", held::l1, 0)), 0) << "no hits";
  EXPECT_EQ(unstaged(d.used("xy", held::both, 1)), 0) << "L2 has it";
  EXPECT_EQ(unstaged(d.used("xyz", held::l1, 1)), 0) << "L3 lacks the parent";
  d.settings.is_stopped = true;
  EXPECT_EQ(unstaged(d.used("k", held::l1, 1)), 0) << "stopped";
  d.settings.is_stopped = false;
  d.settings.options.storage_attached = false;
  EXPECT_EQ(unstaged(d.used("l", held::l1, 1)), 0) << "no L3";
  d.settings.options.storage_attached = true;
  EXPECT_EQ(unstaged(d.used("m", held::l1, 1)), 1);
  d.part.want_staged(d.used("n", held::l1, 1));
  d.part.forget_staging();
  d.part.stage();
  EXPECT_TRUE(d.take<write_command>().empty()) << "forgotten";
  d.check();
}

// -- state --------------------------------------------------------------------

TEST(OpenCopies, DigestFollowsTheState) {
  expect_digest_follows<copier>(
    {[](copier& d) { d.part.write_path(d.add("ab", held::l1), 0, false); },
     [](copier& d) { d.part.write_path(d.add("xy", held::l1), 0, false); },
     [](copier& d) { d.finish_writes(1); }, [](copier& d) { d.finish_writes(2, true); },
     [](copier& d) { d.load(d.add("q", held::l2)); }, [](copier& d) { d.finish_loads(1); },
     [](copier& d) {
       d.settings.options.storage_attached = true;
       d.part.want_staged(d.add("s", held::l1));
     }});
}

TEST(OpenCopiesDeathTest, CheckFindsAWriteThatOnlyTheTreeHas) {
  auto d = copier{};
  auto& ab = d.add("ab", held::l1);
  node_edit{d.tree, ab}.begin_write(1, d.tree.take_l2(2).value());
  EXPECT_DEATH(d.part.check_invariants(), "writing_pages_");
}

TEST(OpenCopiesDeathTest, NoMoreCopiesEndThanBegan) {
  auto d = copier{};
  d.part.write_path(d.add("ab", held::l1), 0, false);
  EXPECT_DEATH(d.part.finish_writes(2, false), "issued");
  EXPECT_DEATH(d.part.finish_writes(0, true), "last_failed");
}
