#include "base/names.hpp"

#include <gtest/gtest.h>

#include <array>

namespace hicache {
namespace {

enum class colour : uint8_t { red, green, blue };

constexpr auto colours = std::to_array<std::string_view>({"red", "green", "blue"});

TEST(NamesTest, EachValueIsFoundByItsName) {
  for (const auto value : {colour::red, colour::green, colour::blue})
    EXPECT_EQ(find_name<colour>(colours, name_of(colours, value)), value);
  EXPECT_STREQ(name_of(colours, colour{3}), "unknown");
}

TEST(NamesTest, AWrongNameIsToldTheRightOnes) {
  const auto found = find_name<colour>(colours, "pink", "a colour");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ec::invalid_argument);
  EXPECT_EQ(found.error().detail, "'pink' is not a colour; expected red, green or blue");
}

TEST(NamesTest, OneNameIsNoList) {
  EXPECT_EQ(alternatives(std::span{colours}.first(1)), "red");
  EXPECT_EQ(alternatives(std::span{colours}.first(2)), "red or green");
}

} // namespace
} // namespace hicache
