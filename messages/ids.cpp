#include "hicache/ids.hpp"

#include "base/random_number.hpp"

#include <absl/strings/escaping.h>

// Keys are short, so a function call would cost more than the hash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

namespace hicache {

std::string to_string(const page_key& key) {
  return absl::BytesToHexString(
    {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()});
}

std::optional<page_key> parse_page_key(std::string_view text) noexcept {
  auto key = page_key{};
  if (text.size() != 2 * key.bytes.size())
    return std::nullopt;
  for (const auto digit : text)
    if ((digit < '0' || digit > '9') && (digit < 'a' || digit > 'f'))
      return std::nullopt;
  for (auto& byte : key.bytes) {
    std::from_chars(text.data(), text.data() + 2, byte, 16);
    text.remove_prefix(2);
  }
  return key;
}

uint64_t salted_hash(const page_key& key) noexcept {
  static const auto salt = random_number();
  return XXH3_64bits_withSeed(key.bytes.data(), key.bytes.size(), salt);
}

} // namespace hicache
