#include "base/unique_mapping.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace hicache {
namespace {

constexpr auto two_pages = size_t{8192};

unique_mapping map_two_pages() {
  return unique_mapping::create(two_pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

bool is_mapped(std::byte* address) {
  return ::msync(address, two_pages, MS_ASYNC) == 0 || errno != ENOMEM;
}

TEST(UniqueMappingTest, MapsUntilItIsDestroyed) {
  auto memory = map_two_pages();
  ASSERT_TRUE(memory);
  ASSERT_EQ(memory.bytes().size(), two_pages);
  auto* const address = memory.data();
  memory.bytes().back() = std::byte{1};
  EXPECT_TRUE(is_mapped(address));
  memory = {};
  EXPECT_FALSE(is_mapped(address));
}

TEST(UniqueMappingTest, OwnershipMoves) {
  auto memory = map_two_pages();
  auto* const address = memory.data();
  auto other = std::move(memory);
  EXPECT_FALSE(memory); // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(memory.bytes().empty());
  EXPECT_EQ(other.data(), address);
  EXPECT_TRUE(is_mapped(address));
}

TEST(UniqueMappingTest, IsEmptyIfTheKernelRefuses) {
  const auto memory = unique_mapping::create(0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_FALSE(memory);
}

} // namespace
} // namespace hicache
