#pragma once

#include "hicache/error.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Whether an object must have the length of its parts, or may be shorter.
enum class part_lengths : uint8_t { exact, bounded };

/// @returns invalid_argument if an object does not belong into parts of `room` bytes
inline result<void> check_room(uint64_t length, uint64_t room, part_lengths rule) {
  if (rule == part_lengths::exact ? length == room : length <= room)
    return {};
  return fail(ec::invalid_argument, "the object has " + std::to_string(length)
                                      + " bytes, its parts have " + std::to_string(room));
}

/// Total bytes of some parts.
template <class Byte>
uint64_t length_of(std::span<const std::span<Byte>> parts) noexcept {
  auto length = uint64_t{0};
  for (const auto& part : parts)
    length += part.size();
  return length;
}

/// The spans of `length` bytes from byte `first` of some parts on.
/// @pre the parts have these bytes
template <class Byte>
std::vector<std::span<Byte>> part_of(std::span<const std::span<Byte>> parts, uint64_t first,
                                     uint64_t length) {
  auto found = std::vector<std::span<Byte>>{};
  for (const auto& part : parts) {
    if (length == 0)
      break;
    if (first >= part.size()) {
      first -= part.size();
      continue;
    }
    const auto count = std::min<uint64_t>(part.size() - first, length);
    found.push_back(part.subspan(first, count));
    length -= count;
    first = 0;
  }
  return found;
}

} // namespace hicache
