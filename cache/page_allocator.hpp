#pragma once

#include "messages/ids.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Hands out the pages 1..capacity of one pool; page 0 is the padding page and stays out of it. The
/// order is fixed: pages given back last come first, then fresh ones in ascending order, so equal
/// calls give equal pages. Single-threaded.
class page_allocator {
public:
  explicit page_allocator(uint32_t capacity);

  /// Takes `count` pages, or none if there are fewer.
  std::optional<std::vector<page_index>> take(uint64_t count);

  /// Gives pages back. A page that is not taken is a programmer error: its number is printed and
  /// the process aborts.
  void give_back(std::span<const page_index> pages);

  uint32_t capacity() const noexcept { return capacity_; }

  uint64_t free() const noexcept { return returned_.size() + (capacity_ - used_up_); }

  bool is_taken(page_index page) const noexcept {
    return page > 0 && page <= used_up_ && taken_[page];
  }

  /// A hash of what will be handed out next, in order. O(1).
  uint64_t digest() const noexcept;

private:
  uint32_t capacity_;
  /// Pages 1..used_up_ were handed out at least once.
  uint32_t used_up_ = 0;
  std::vector<page_index> returned_;
  std::vector<bool> taken_;
  /// Sum of hashes of (place, page) of returned_.
  uint64_t returned_digest_ = 0;
};

} // namespace hicache
