#include "base/units.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using namespace literals;

TEST(UnitsTest, ReadsSizes) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("64MiB"), 64_MiB);
  EXPECT_EQ(parse_bytes("2GB"), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("1.5G"), 1'500'000'000u);
  EXPECT_EQ(parse_bytes("1Ki"), 1_KiB);
  EXPECT_EQ(parse_bytes("0"), 0u);
}

TEST(UnitsTest, RefusesWhatIsNoSize) {
  for (const auto* text : {"", "abc", "-5", "1XB", "1 MiB", "1e9", "inf", "99999999999TB"}) {
    const auto size = parse_bytes(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code, ec::invalid_argument);
    EXPECT_NE(size.error().detail.find(text), std::string::npos) << "the sentence names the text";
  }
}

// SGLang reads what it does not understand as 0, which is no bound; here it is refused.
TEST(UnitsTest, F12SizesOfSglang) {
  EXPECT_EQ(parse_bytes("1k"), 1000u);
  EXPECT_EQ(parse_bytes("1Ki"), 1024u);
  EXPECT_EQ(parse_bytes("1.5G"), 1'500'000'000u);
  EXPECT_EQ(parse_bytes("200G"), 200'000'000'000u);
  EXPECT_EQ(parse_bytes("1Gi"), 1'073'741'824u);
  EXPECT_EQ(parse_bytes("1Ti"), 1_GiB << 10);
  EXPECT_EQ(parse_bytes("10"), 10u);
  EXPECT_EQ(parse_bytes("1024"), 1024u);
  EXPECT_EQ(parse_bytes("1KB"), 1000u);
  EXPECT_EQ(parse_bytes("0"), 0u);
  for (const auto* text : {"", "null", "abc", "-5", "-3"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(UnitsTest, ReadsTimes) {
  EXPECT_EQ(parse_duration("250ms"), 250ms);
  EXPECT_EQ(parse_duration("2s"), 2s);
  EXPECT_EQ(parse_duration("0.5min"), 30s);
  EXPECT_FALSE(parse_duration("2"));
  EXPECT_FALSE(parse_duration("-1s"));
}

TEST(UnitsTest, PrintsSizes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(3_GiB), "3.0 GiB");
}

} // namespace
} // namespace hicache
