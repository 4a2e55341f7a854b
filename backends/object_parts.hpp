#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

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
