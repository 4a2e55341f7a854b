#include "cache/store/unwanted_pages.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

using test::key_of;

TEST(UnwantedPagesTest, KnowsPagesOfANamespaceAndNamespaces) {
  auto unwanted = unwanted_pages{10};
  unwanted.add(7, key_of(1));
  unwanted.add(8);
  EXPECT_TRUE(unwanted.contains(7, key_of(1)));
  EXPECT_FALSE(unwanted.contains(7, key_of(2)));
  EXPECT_FALSE(unwanted.contains(9, key_of(1)));
  EXPECT_TRUE(unwanted.contains(8, key_of(2)));
  unwanted.clear();
  EXPECT_FALSE(unwanted.contains(7, key_of(1)));
}

TEST(UnwantedPagesTest, BeyondItsBoundNoPageIsWanted) {
  auto unwanted = unwanted_pages{2};
  for (auto number = uint64_t{1}; number <= 2; ++number)
    unwanted.add(7, key_of(number));
  EXPECT_FALSE(unwanted.contains(7, key_of(9)));
  unwanted.add(7, key_of(2));
  EXPECT_FALSE(unwanted.contains(7, key_of(9))) << "it was noted before";
  unwanted.add(7, key_of(3));
  EXPECT_TRUE(unwanted.contains(7, key_of(9)));
}

} // namespace
} // namespace hicache
