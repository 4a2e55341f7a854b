#include "cache/store/disk_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <set>

namespace hicache::test {
namespace {

TEST(DiskTable, CountsWhatItHas) {
  auto table = disk_table{};
  table.add(key_of(1), {7, 100});
  table.add(key_of(2), {8, 50});
  table.add(key_of(1), {9, 1000});
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table.bytes(), 150u);
  EXPECT_EQ(table.find(key_of(1)), (disk_table::page{7, 100})) << "the first one stays";
  EXPECT_TRUE(table.remove(key_of(1)));
  EXPECT_FALSE(table.remove(key_of(1)));
  EXPECT_FALSE(table.find(key_of(1)));
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.bytes(), 50u);
}

TEST(DiskTable, LosesWhatAListLacked) {
  constexpr auto pages = uint64_t{1000};
  auto table = disk_table{};
  for (auto i = uint64_t{0}; i < pages; ++i)
    EXPECT_TRUE(table.add(key_of(i), {7, 10, 1}));
  for (auto i = uint64_t{0}; i < pages; i += 2)
    EXPECT_FALSE(table.add(key_of(i), {7, 10, 2}));
  auto gone = std::vector<page_key>{};
  auto from = std::optional<uint64_t>{0};
  while (from)
    from = table.remove_unlisted(2, *from, 100, gone);
  EXPECT_EQ(gone.size(), pages / 2);
  for (auto i = uint64_t{0}; i < pages; ++i)
    EXPECT_EQ(table.find(key_of(i)).has_value(), i % 2 == 0) << i;
}

TEST(DiskTable, ListsEachPageOnceWhateverChangesMeanwhile) {
  constexpr auto pages = uint64_t{20000};
  auto table = disk_table{};
  for (auto i = uint64_t{0}; i < pages; ++i)
    table.add(key_of(i), {i % 3, 10});
  auto seen = std::set<page_key>{};
  auto from = uint64_t{0};
  for (auto round = uint64_t{0};; ++round) {
    const auto part = table.list(from, 97);
    if (part.empty())
      break;
    EXPECT_GE(part.front().position, from);
    for (const auto& each : part)
      EXPECT_TRUE(seen.insert(each.key).second);
    table.remove(part.front().key);
    table.add(key_of(pages + round), {});
    from = part.back().position + 1;
  }
  for (auto i = uint64_t{0}; i < pages; ++i)
    EXPECT_TRUE(seen.contains(key_of(i))) << i;
  EXPECT_TRUE(table.list(0, 0).empty());
}

} // namespace
} // namespace hicache::test
