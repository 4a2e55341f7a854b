#pragma once

#include "cache/radix/page_allocator.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Position of a token in a pool: page * page_size + offset. The first page_size slots are padding.
using slot_index = uint32_t;

/// A request that grows from `prefix_len` to `seq_len` tokens.
struct slot_extension {
  uint64_t prefix_len = 0;
  uint64_t seq_len = 0;
  /// The slot of token prefix_len - 1. Ignored if the prefix ends at a page boundary.
  slot_index last_slot = 0;
};

/// A request that grows by one token to `seq_len`.
struct slot_decode {
  uint64_t seq_len = 0;
  /// The slot of token seq_len - 2. Ignored if the new token begins a page.
  slot_index last_slot = 0;
};

/// Allocates token slots for engines that keep their own slot tables. Taking a slot of a page means
/// owning the page; how far it is written is up to the engine. Failed calls change nothing. Equal
/// calls give equal slots. Single-threaded.
class slot_allocator {
public:
  /// Slots in token order; nothing if there is not enough room.
  using slots = std::optional<std::vector<slot_index>>;

  /// @param pages Usable pages, not counting the padding page.
  /// @param page_size Slots per page, at least 1.
  /// @pre all slots fit in slot_index
  slot_allocator(uint32_t pages, uint32_t page_size, page_order order = page_order::newest_first);

  /// Takes whole pages of slots.
  /// @returns invalid_argument if `count` is not a multiple of the page size.
  result<slots> take(uint64_t count);

  /// Takes seq_len - prefix_len slots for each request, all of the batch or none: first the rest of
  /// its last page, then whole pages, then part of a page. The slots are ordered by request.
  /// @returns invalid_argument, naming the request's position in the batch and the slot, if a
  /// request shrinks or its last slot cannot be that of its last token.
  result<slots> extend(std::span<const slot_extension> batch);

  /// Takes one slot for each request, all of the batch or none: the one after the last slot or, at
  /// a page boundary, the first of a new page. Errors as in extend().
  result<slots> decode(std::span<const slot_decode> batch);

  /// Frees the pages of the slots, each once, whatever part of it is named.
  /// @returns the number of slots of these pages; invalid_argument, naming the slot, if its page is
  /// not taken (any more) or the slot is a duplicate.
  result<uint64_t> give_back(std::span<const slot_index> freed);

  /// Begins a group: pages given back become free when the outermost group ends. The pool keeps the
  /// numbers; the caller may reuse its buffers.
  void begin_group() noexcept { pages_.begin_group(); }

  /// @returns invalid_argument if no group is open.
  result<void> end_group();

  /// Frees everything and ends all groups. Earlier slots cannot be given back afterwards.
  void clear() { pages_ = page_allocator{pages_.capacity(), order_}; }

  uint32_t page_size() const noexcept { return page_size_; }

  uint64_t capacity() const noexcept { return uint64_t{pages_.capacity()} * page_size_; }

  uint64_t free() const noexcept { return pages_.free() * page_size_; }

  /// True if the slot's page is taken.
  bool is_taken(slot_index slot) const noexcept { return pages_.is_taken(slot / page_size_); }

  /// Hash of the future allocations. O(1).
  uint64_t digest() const noexcept { return pages_.digest(); }

private:
  uint64_t pages_for(uint64_t tokens) const noexcept;
  result<void> check(const slot_extension& extension, size_t place) const;

  uint32_t page_size_;
  page_order order_;
  page_allocator pages_;
};

} // namespace hicache
