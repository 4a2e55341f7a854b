#include "cache/extent_allocator.hpp"

#include "base/check.hpp"

#include <iterator>

namespace hicache {

extent_allocator::extent_allocator(uint64_t bytes) : capacity_(bytes) {
  if (bytes > 0)
    insert(0, bytes);
}

std::optional<uint64_t> extent_allocator::take(uint64_t bytes) {
  HICACHE_CHECK(bytes > 0);
  const auto fit = by_length_.lower_bound({bytes, 0});
  if (fit == by_length_.end())
    return std::nullopt;
  const auto [length, offset] = *fit;
  remove(holes_.find(offset));
  if (length > bytes)
    insert(offset + bytes, length - bytes);
  return offset;
}

void extent_allocator::take_hole(uint64_t offset) {
  const auto at = holes_.find(offset);
  HICACHE_CHECK(at != holes_.end());
  remove(at);
}

void extent_allocator::give_back(uint64_t offset, uint64_t bytes) {
  HICACHE_CHECK(bytes > 0 && bytes <= capacity_ && offset <= capacity_ - bytes);
  auto next = holes_.lower_bound(offset);
  HICACHE_CHECK(next == holes_.end() || next->first >= offset + bytes);
  if (next != holes_.end() && next->first == offset + bytes) {
    bytes += next->second;
    remove(next);
    next = holes_.lower_bound(offset);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    const auto [begin, length] = *before;
    HICACHE_CHECK(begin + length <= offset);
    if (begin + length == offset) {
      offset = begin;
      bytes += length;
      remove(before);
    }
  }
  insert(offset, bytes);
}

void extent_allocator::remove(hole at) {
  free_ -= at->second;
  by_length_.erase({at->second, at->first});
  holes_.erase(at);
}

void extent_allocator::insert(uint64_t offset, uint64_t bytes) {
  free_ += bytes;
  holes_.emplace(offset, bytes);
  by_length_.emplace(bytes, offset);
}

} // namespace hicache
