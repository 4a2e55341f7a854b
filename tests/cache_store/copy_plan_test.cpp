#include "base/limits.hpp"
#include "cache/store/copy_plan.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;

using plan = std::map<uint64_t, std::vector<size_t>>;

member_info member(uint64_t id, const std::string& host) {
  auto info = member_info{};
  info.member = id;
  info.host = host;
  return info;
}

wanted_copies wanted(uint64_t key, uint32_t copies, std::vector<uint64_t> holders = {}) {
  auto page = wanted_copies{};
  page.key = key_of(key);
  page.copies = copies;
  page.holders = std::move(holders);
  return page;
}

/// Members 1 to 4, each on a host of its own.
std::vector<member_info> four() {
  return {member(1, "a"), member(2, "b"), member(3, "c"), member(4, "d")};
}

std::vector<uint64_t> asked(const plan& x) {
  auto ids = std::vector<uint64_t>{};
  for (const auto& [id, positions] : x)
    ids.push_back(id);
  return ids;
}

TEST(CopyPlanTest, APageWithAllItsCopiesIsLeftAlone) {
  const auto members = four();
  const auto pages = std::vector{wanted(1, 2, {1, 3}), wanted(2, 1, {1})};
  EXPECT_TRUE(plan_copies(pages, members, {1, "a", true}).empty());
}

TEST(CopyPlanTest, ALostCopyIsMadeAnewOnAHostThatHasNone) {
  const auto members = four();
  const auto pages = std::vector{wanted(1, 3, {1, 2})};
  const auto found = plan_copies(pages, members, {1, "a", true});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found.begin()->first == 3 || found.begin()->first == 4);
  EXPECT_EQ(plan_copies(pages, members, {1, "a", true}), found) << "equal arguments, equal answers";
}

TEST(CopyPlanTest, MembersOfOneHostCountOnce) {
  const auto members = std::vector{member(1, "a"), member(2, "a"), member(3, "b")};
  const auto pages = std::vector{wanted(1, 2, {1, 2})};
  EXPECT_EQ(asked(plan_copies(pages, members, {1, "a", true})), std::vector<uint64_t>{3});
}

TEST(CopyPlanTest, NoMoreHostsThanThereAre) {
  const auto members = std::vector{member(1, "a"), member(2, "b")};
  const auto pages = std::vector{wanted(1, 8, {1, 2})};
  EXPECT_TRUE(plan_copies(pages, members, {1, "a", true}).empty());
}

TEST(CopyPlanTest, PagesOfABatchGoTogether) {
  const auto members = four();
  const auto pages = std::vector{wanted(1, 1), wanted(2, 1), wanted(3, 1)};
  const auto found = plan_copies(pages, members, {1, "a", false});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->second, (std::vector<size_t>{0, 1, 2}));
}

TEST(CopyPlanTest, OneThatLeavesDoesNotCountAndAsksItsOwnHostLast) {
  auto members = std::vector{member(1, "a"), member(2, "a"), member(3, "b")};
  const auto pages = std::vector{wanted(1, 1, {1})};
  EXPECT_EQ(asked(plan_copies(pages, members, {1, "a", false})), std::vector<uint64_t>{3});
  members.pop_back();
  EXPECT_EQ(asked(plan_copies(pages, members, {1, "a", false})), std::vector<uint64_t>{2});
  members.pop_back();
  EXPECT_TRUE(plan_copies(pages, members, {1, "a", false}).empty());
}

TEST(CopyPlanTest, AHolderIsToldOfAPinBeforeAnybodyCopies) {
  const auto members = four();
  auto pages = std::vector{wanted(1, 1, {1, 3})};
  const auto source = copy_source{1, "a", false};
  EXPECT_TRUE(lacking_copies(pages, members, source).empty());
  pages[0].is_pinned = true;
  EXPECT_EQ(lacking_copies(pages, members, source).size(), 1u)
    << "nobody has said that it keeps the pin";
  EXPECT_EQ(asked(plan_copies(pages, members, source)), std::vector<uint64_t>{3});
  pages[0].confirmed = {3};
  EXPECT_TRUE(plan_copies(pages, members, source).empty());
  EXPECT_TRUE(lacking_copies(pages, members, source).empty());
}

TEST(CopyPlanTest, WhoRefusedIsNotAskedAgainAndAfterSomeNobodyIs) {
  auto members = four();
  for (uint64_t id = 5; id < 20; ++id)
    members.push_back(member(id, "host" + std::to_string(id)));
  auto pages = std::vector{wanted(1, 1)};
  const auto source = copy_source{1, "a", false};
  for (auto i = size_t{0}; i < limits::copy_targets; ++i) {
    const auto found = plan_copies(pages, members, source);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(std::ranges::count(pages[0].refused, found.begin()->first), 0);
    pages[0].refused.push_back(found.begin()->first);
  }
  EXPECT_TRUE(plan_copies(pages, members, source).empty());
  EXPECT_EQ(lacking_copies(pages, members, source).size(), 1u);
}

TEST(CopyPlanTest, OfOneThatStaysAPageLacksCopiesUntilItHasAll) {
  const auto members = four();
  auto pages = std::vector{wanted(1, 3, {1, 2}), wanted(2, 2, {1, 4}), wanted(3, 2)};
  const auto source = copy_source{1, "a", true};
  EXPECT_EQ(lacking_copies(pages, members, source), (std::vector<size_t>{0, 2}));
  pages[0].confirmed = {4};
  EXPECT_EQ(lacking_copies(pages, members, source), std::vector<size_t>{2});
}

TEST(CopyPlanTest, MembersThatAreDrainedAreNotAsked) {
  auto members = four();
  const auto pages = std::vector{wanted(1, 2)};
  const auto source = copy_source{1, "a", true};
  const auto before = asked(plan_copies(pages, members, source)).front();
  members[before - 1].is_closed = true;
  const auto after = asked(plan_copies(pages, members, source));
  ASSERT_EQ(after.size(), 1u);
  EXPECT_NE(after.front(), before);
}

TEST(CopyPlanTest, MembersWithoutASegmentAreNotAsked) {
  auto without = member(2, "b");
  without.exported.count = 1;
  const auto members = std::vector{member(1, "a"), without};
  EXPECT_TRUE(plan_copies(std::vector{wanted(1, 1)}, members, {1, "a", false}).empty());
}

} // namespace
} // namespace hicache
