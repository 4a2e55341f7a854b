#pragma once

#include "hicache/ids.hpp"
#include "hicache/policies.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Allocates the pages 1..capacity of one pool; page 0 is the padding page and never allocated.
/// Deterministic: equal calls give equal pages. Single-threaded.
class page_allocator {
public:
  explicit page_allocator(uint32_t capacity, page_order order = page_order::newest_first);

  /// Takes `count` pages, or none if there are fewer.
  std::optional<std::vector<page_index>> take(uint64_t count);

  /// Frees pages. Aborts and prints the number of a page that is not taken: a programming error.
  void give_back(std::span<const page_index> pages);

  /// Begins a group: pages given back from now on become free when the group ends, in their order.
  /// Meanwhile they are neither taken nor free. The pool keeps the numbers; the caller may reuse
  /// its buffers. Groups nest; the outermost one counts.
  void begin_group() noexcept { ++group_depth_; }

  /// @pre in_group()
  void end_group();

  bool in_group() const noexcept { return group_depth_ > 0; }

  /// Keeps taken pages out of use beyond their owner: given back, they become free only with
  /// release(). Counted.
  void hold(std::span<const page_index> pages);

  void release(std::span<const page_index> pages);

  /// Held pages that have an owner, and those that have been given back.
  uint64_t held_in_use() const noexcept { return holds_.size() - held_back_; }

  uint64_t held_back() const noexcept { return held_back_; }

  uint32_t capacity() const noexcept { return capacity_; }

  /// Pages that take() can return.
  uint64_t free() const noexcept { return listed() + waiting_.size(); }

  bool is_taken(page_index page) const noexcept {
    return page <= capacity_ && (taken_[page / word_bits] >> (page % word_bits) & 1) != 0;
  }

  /// Hash of the future allocations, in order. O(1).
  uint64_t digest() const noexcept;

private:
  struct page_hold {
    uint32_t count = 0;
    bool is_given_back = false;
  };

  static constexpr uint32_t word_bits = 64;

  /// Pages that take() can return without sorting.
  uint64_t listed() const noexcept { return returned_.size() + (capacity_ - used_up_); }

  void flip(page_index page) noexcept {
    taken_[page / word_bits] ^= uint64_t{1} << (page % word_bits);
  }

  void put_back(std::span<const page_index> pages);
  void make_free(std::span<const page_index> pages);
  void sort_waiting_pages();

  uint32_t capacity_;
  page_order order_;
  /// Pages 1..used_up_ were allocated at least once.
  uint32_t used_up_ = 0;
  uint32_t group_depth_ = 0;
  /// The free list besides the never-used pages; a stack.
  std::vector<page_index> returned_;
  /// Free, but not yet in the free list (page_order::ascending).
  std::vector<page_index> waiting_;
  /// Given back in the open group.
  std::vector<page_index> grouped_;
  /// One bit per page; the padding page's is never set.
  std::vector<uint64_t> taken_;
  absl::flat_hash_map<page_index, page_hold> holds_;
  /// Entries of `holds_` that are given back. They still count as taken.
  uint64_t held_back_ = 0;
  /// Sum of hashes of (position, page) over the three lists and the held pages given back.
  uint64_t lists_digest_ = 0;
};

} // namespace hicache
