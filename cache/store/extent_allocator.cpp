#include "cache/store/extent_allocator.hpp"

#include "base/check.hpp"

#include <iterator>
#include <limits>

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

std::optional<hole_window> extent_allocator::find_window(
  uint64_t bytes, const std::function<bool(uint64_t begin, uint64_t end)>& is_fixed) const {
  auto best = std::optional<hole_window>{};
  auto fewest = std::numeric_limits<uint64_t>::max();
  auto first = holes_.begin();
  auto in_holes = uint64_t{0};
  auto previous_end = uint64_t{0};
  for (auto last = first; last != holes_.end(); ++last) {
    const auto [begin, length] = *last;
    if (last != first && is_fixed(previous_end, begin)) {
      first = last;
      in_holes = 0;
    }
    in_holes += length;
    previous_end = begin + length;
    for (; in_holes - first->second >= bytes; ++first)
      in_holes -= first->second;
    const auto taken = previous_end - first->first - in_holes;
    if (in_holes >= bytes && taken < fewest) {
      best = {first->first, previous_end};
      fewest = taken;
    }
  }
  return best;
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
