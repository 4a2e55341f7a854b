#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <cstring>

namespace hicache::test {

/// A key that is spread like a real one, distinct for each number.
inline page_key key_of(uint64_t number) {
  auto key = page_key{};
  auto word = number;
  for (size_t i = 0; i < 4; ++i) {
    word = (word + 0x9e37'79b9'7f4a'7c15ULL) * 0xbf58'476d'1ce4'e5b9ULL;
    word ^= word >> 31;
    std::memcpy(key.bytes.data() + 8 * i, &word, 8);
  }
  return key;
}

} // namespace hicache::test
