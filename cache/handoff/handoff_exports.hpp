#pragma once

#include "cache/handoff/handoff_cut.hpp"
#include "cache/store/extent_allocator.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"

#include <absl/container/btree_map.h>

#include <cstdint>
#include <vector>

namespace hicache {

/// Position of a handoff's objects in the sender's memory: a slot for each, by layer, page and
/// object.
struct handoff_place {
  uint64_t offset = 0;
  uint64_t slot_bytes = 0;
  uint64_t pages = 0;
  /// Objects of a page and layer.
  uint32_t objects = 1;

  uint64_t slot(uint32_t layer, uint64_t page, uint32_t object) const noexcept {
    return (layer * pages + page) * objects + object;
  }

  uint64_t begin(uint64_t slot) const noexcept { return offset + slot * slot_bytes; }
};

/// The name of an object: nobody asks for it by mistake, as the nonce is random.
page_key handoff_key(uint64_t nonce, uint64_t handoff, uint64_t slot) noexcept;

/// Pages that the prompt needs from `first_page` on.
constexpr uint64_t handoff_page_count(uint64_t tokens, uint64_t first_page,
                                      uint32_t page_size) noexcept {
  const auto all = (tokens + page_size - 1) / page_size;
  return all > first_page ? all - first_page : 0;
}

/// Rows that are filled in a page of a prompt.
constexpr uint64_t handoff_row_count(uint64_t tokens, uint64_t page, uint32_t page_size) noexcept {
  return tokens - page * page_size < page_size ? tokens - page * page_size : page_size;
}

/// The handoffs of a sender: where their objects lie, and which are written. Equal calls give equal
/// answers, so all ranks of an instance agree. Not thread-safe.
class handoff_exports {
public:
  /// @param shape Of this rank's pool.
  /// @param heads KV heads of the whole model.
  handoff_exports(const pool_shape& shape, uint32_t heads, uint32_t ranks, uint64_t bytes);

  struct open_handoff {
    handoff_place place;
    handoff_cut cut;
    uint32_t generation = 0;
    uint64_t first_page = 0;
    uint64_t tokens = 0;
    /// Pages written, by layer.
    std::vector<uint64_t> staged;

    uint64_t slots() const noexcept { return staged.size() * place.pages * place.objects; }
  };

  /// @returns limit_reached if the memory is occupied; invalid_argument with a sentence if the
  /// handoff is open, or can never be
  result<const open_handoff*> open(uint64_t handoff, uint64_t first_page, uint64_t tokens,
                                   uint32_t receiver_ranks);

  /// Pages [first, end) of a handoff.
  struct page_range {
    uint64_t first = 0;
    uint64_t end = 0;
  };

  /// The pages of a layer to write now; they count as written.
  /// @param tokens Tokens whose KV is complete in this layer.
  /// @pre the handoff is open
  page_range stage(uint64_t handoff, uint32_t layer, uint64_t tokens);

  /// Null if it is not open.
  const open_handoff* find(uint64_t handoff) const;

  /// Frees its memory. The caller has cleared the headers of its slots.
  void close(uint64_t handoff);

  uint64_t used_bytes() const noexcept { return extents_.capacity() - extents_.free(); }

private:
  const pool_shape shape_;
  const uint32_t heads_;
  const uint32_t ranks_;
  extent_allocator extents_;
  uint32_t last_generation_ = 0;
  absl::btree_map<uint64_t, open_handoff> open_;
};

} // namespace hicache
