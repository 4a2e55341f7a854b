// Names of pages: as text, and in hash tables.

#include "hicache/ids.hpp"

#include <gtest/gtest.h>

#include <set>

namespace hicache {
namespace {

TEST(PageKeyTest, IsWrittenAndReadAsHexadecimalDigits) {
  auto key = page_key{};
  for (auto i = size_t{0}; i < key.bytes.size(); ++i)
    key.bytes[i] = static_cast<uint8_t>(i * 37);
  const auto text = to_string(key);
  EXPECT_EQ(parse_page_key(text), key);
  auto capital = text;
  capital[2] = 'A';
  for (const auto& other :
       {text.substr(1), text + "0", std::string(64, 'g'), capital, std::string{}})
    EXPECT_FALSE(parse_page_key(other)) << other;
}

TEST(PageKeyTest, KeysChosenToShareAWordDoNotCollideInHashTables) {
  constexpr auto count = 1000;
  auto hashes = std::set<size_t>{};
  auto slots = std::set<size_t>{};
  for (auto i = 0; i < count; ++i) {
    auto key = page_key{};
    key.bytes[31] = static_cast<uint8_t>(i);
    key.bytes[30] = static_cast<uint8_t>(i >> 8);
    EXPECT_EQ(first_word(key), 0u);
    hashes.insert(std::hash<page_key>{}(key));
    slots.insert(std::hash<page_key>{}(key) % 1024);
  }
  EXPECT_EQ(hashes.size(), size_t{count});
  // 1000 balls in 1024 slots leave about 640 of them in use.
  EXPECT_GT(slots.size(), 500u);
}

} // namespace
} // namespace hicache
