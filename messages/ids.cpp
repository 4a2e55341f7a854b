#include "hicache/ids.hpp"

// Keys are short, so a function call would cost more than the hash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <random>

namespace hicache {

std::string to_string(const page_key& key) {
  static constexpr char digits[] = "0123456789abcdef";
  auto text = std::string{};
  text.reserve(2 * key.bytes.size());
  for (const auto byte : key.bytes) {
    text.push_back(digits[byte >> 4]);
    text.push_back(digits[byte & 15]);
  }
  return text;
}

uint64_t salted_hash(const page_key& key) noexcept {
  static const auto salt = [] {
    auto source = std::random_device{};
    return uint64_t{source()} << 32 | source();
  }();
  return XXH3_64bits_withSeed(key.bytes.data(), key.bytes.size(), salt);
}

} // namespace hicache
