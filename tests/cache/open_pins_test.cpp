// Pins: locks, the time they last, and the tenants' budgets.

#include "cache/prefix/open_pins.hpp"
#include "tests/cache/part_tree.hpp"

using namespace hicache;
using namespace hicache::test;

namespace {

using std::chrono::nanoseconds;

tree_options with_budget(uint64_t pages = 16) {
  auto options = part_options();
  options.pin_budget_pages = pages;
  return options;
}

struct pin_holder : part_tree {
  explicit pin_holder(const tree_options& options = with_budget()) : part_tree(options) {}

  void pin(radix_node& end, int64_t ttl_ns) {
    part.begin(end, nanoseconds{ttl_ns});
    check();
  }

  /// A step that says what time it is.
  void step(int64_t now_ns) {
    settings.now_ns = now_ns;
    part.advance();
    check();
  }

  void check() const { part_tree::check(backups, copies, part); }

  open_backups backups{tree, settings, effects};
  open_copies copies{tree, backups, settings, effects};
  open_pins part{tree, copies, settings};
};

} // namespace

TEST(OpenPins, KeepTheirPathUntilTheyEnd) {
  auto d = pin_holder{};
  d.add("ab", held::both);
  auto& abcd = d.add("abcd", held::l1);
  auto& abcdef = d.add("abcdef", held::l2);
  d.pin(abcd, 10);
  d.pin(abcdef, 20);
  EXPECT_EQ(d.part.pages(), 6);
  EXPECT_EQ(d.tree.evict_l1(16) + d.tree.evict_l2(16), 0);
  d.step(0);
  d.step(20);
  EXPECT_TRUE(d.part.empty());
  EXPECT_EQ(d.part.pages(), 0);
  EXPECT_EQ(d.tree.evict_l1(16), 4);
  d.tree.evict_l2(16);
  EXPECT_EQ(d.tree.node_count(), 0);
}

TEST(OpenPins, LetPagesLeaveL1OnceL2HasThem) {
  auto d = pin_holder{};
  auto& abcd = d.add("abcd", held::l1);
  d.tree.touch(abcd, 1);
  d.pin(abcd, 10);
  EXPECT_EQ(d.take<write_command>().size(), 1);
  EXPECT_TRUE(abcd.has_pin_lock());
  d.copies.finish_writes(1, false);
  EXPECT_FALSE(abcd.has_pin_lock());
  EXPECT_EQ(d.tree.evict_l1(16), 4);
  EXPECT_EQ(d.tree.evict_l2(16), 0);
  d.check();
  d.part.end_all();
  EXPECT_EQ(d.tree.evict_l2(16), 4);
  d.check();
}

TEST(OpenPins, LastTheirTtlFromTheNextStepOn) {
  auto d = pin_holder{};
  auto& ab = d.add("ab", held::l1);
  d.pin(ab, 5);
  d.pin(ab, 10);
  EXPECT_TRUE(d.part.is_waiting());
  d.step(100);
  EXPECT_FALSE(d.part.is_waiting());
  d.pin(ab, 2);
  d.step(105);
  d.step(109);
  EXPECT_FALSE(d.part.empty()) << "a shorter ttl must not end a pin earlier";
  d.step(110);
  EXPECT_TRUE(d.part.empty());
  d.pin(ab, INT64_MAX);
  d.step(200);
  d.step(INT64_MAX - 1);
  EXPECT_FALSE(d.part.empty());
  d.step(INT64_MAX);
  EXPECT_TRUE(d.part.empty());
}

TEST(OpenPins, AreRefreshedWithTheirLongestTtl) {
  for (const auto is_enabled : {false, true}) {
    auto options = with_budget();
    options.pin_refresh = is_enabled;
    auto d = pin_holder{options};
    auto& ab = d.add("ab", held::l1);
    auto& abcd = d.add("abcd", held::l1);
    auto& other = d.add("xy", held::l1);
    for (auto* end : {&ab, &abcd, &other})
      d.pin(*end, 10);
    d.step(0);
    d.pin(ab, 3);
    d.step(0);
    d.part.refresh(abcd);
    EXPECT_EQ(d.part.is_waiting(), is_enabled);
    d.step(5);
    d.step(10);
    EXPECT_EQ(other.pins(), 0);
    EXPECT_EQ(ab.pins(), is_enabled ? 2 : 0);
    d.step(15);
    EXPECT_TRUE(d.part.empty());
  }
}

TEST(OpenPins, ShareABudgetPerTenantThatCountsPagesOnce) {
  auto d = pin_holder{with_budget(4)};
  auto& ab = d.add("ab", held::l1);
  auto& abcd = d.add("abcd", held::l1);
  auto& abx = d.add("abx", held::l1);
  auto& theirs = d.add("abcd", held::l1, l3_state::unknown, {"", "tenant"});
  d.pin(ab, 10);
  EXPECT_EQ(open_pins::unpinned_pages({&abcd, 4}), 2);
  EXPECT_TRUE(d.part.fits_budget({&abcd, 4}));
  d.pin(abcd, 10);
  EXPECT_EQ(d.part.pages(), 4);
  EXPECT_TRUE(d.part.fits_budget({&ab, 2}));
  EXPECT_FALSE(d.part.fits_budget({&abx, 3}));
  EXPECT_TRUE(d.part.fits_budget({&theirs, 4}));
  d.pin(theirs, 10);
  EXPECT_EQ(d.part.pages(), 8);
  d.part.end_within({&abcd, 4});
  EXPECT_TRUE(d.part.fits_budget({&abx, 3}));
  EXPECT_EQ(d.part.pages(), 4);
  d.check();
}

TEST(OpenPins, EndWithinAPathOrBelowANode) {
  auto d = pin_holder{};
  auto& ab = d.add("ab", held::l1);
  auto& abcd = d.add("abcd", held::l1);
  auto& abx = d.add("abx", held::l1);
  for (auto* end : {&ab, &abcd, &abx})
    d.pin(*end, 10);
  d.part.end_within({&abcd, 3});
  EXPECT_EQ(ab.pins(), 2) << "only the pin at ab ends within abc";
  EXPECT_EQ(abcd.pins(), 1);
  d.part.end_below(abcd);
  EXPECT_EQ(abcd.pins(), 0);
  EXPECT_EQ(abx.pins(), 1);
  d.part.end_below(ab);
  EXPECT_TRUE(d.part.empty());
  d.check();
}

TEST(OpenPins, DigestFollowsTheState) {
  const auto pin = [](std::string_view path, int64_t ttl_ns) {
    return [=](pin_holder& d) {
      d.pin(d.tree.cut(d.tree.walk(d.tree.root({}), *d.tokens_of(path), path.size())), ttl_ns);
    };
  };
  const auto step = [](int64_t now_ns) { return [=](pin_holder& d) { d.step(now_ns); }; };
  expect_digest_follows<pin_holder>({[&](pin_holder& d) {
                                       d.add("abcd", held::l1);
                                       pin("abcd", 10)(d);
                                     },
                                     pin("ab", 10), pin("ab", 11), step(5), pin("abcd", 20),
                                     step(6), step(16)});
}

TEST(OpenPinsDeathTest, CheckFindsAPinThatOnlyTheTreeHas) {
  auto d = pin_holder{};
  d.tree.pin(d.add("ab", held::l1));
  EXPECT_DEATH(d.part.check_invariants(), "pins");
}
