#pragma once

#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Objects of a sender rank that a receiver rank reads.
struct handoff_source {
  uint32_t rank = 0;
  /// Number among the objects of a page and layer of that rank.
  uint32_t object = 0;
  /// Where its heads belong, numbered among the receiver rank's own.
  head_range heads;

  friend bool operator==(const handoff_source&, const handoff_source&) = default;
};

/// How the pages of a handoff are cut into objects that every rank of both instances can use: each
/// holds the rows of one page in one layer, of as many heads as fit both splits. A value.
class handoff_cut {
public:
  /// @param heads KV heads of the whole model.
  /// @returns nothing if the heads cannot be split over these ranks
  static std::optional<handoff_cut> between(uint32_t heads, uint32_t sender_ranks,
                                            uint32_t receiver_ranks);

  /// Heads of one object.
  uint32_t heads() const noexcept { return heads_; }

  /// Objects of a page and layer on each sender rank, in the order of their heads.
  uint32_t objects() const noexcept { return sender_.heads / heads_; }

  /// The heads of an object, numbered among the sender rank's own.
  head_range heads_of(uint32_t object) const noexcept { return {object * heads_, heads_}; }

  /// All objects that a receiver rank needs of each page and layer. Where several sender ranks hold
  /// the same heads, receivers are spread over them.
  std::vector<handoff_source> sources(uint32_t receiver_rank) const;

private:
  handoff_cut(head_split sender, head_split receiver) noexcept;

  head_split sender_;
  head_split receiver_;
  uint32_t heads_;
};

/// Bytes of an object with `rows` tokens.
uint64_t handoff_object_bytes(const pool_shape& shape, uint32_t heads, uint64_t rows) noexcept;

/// The memory of some heads of the first `rows` tokens of a page in one layer, in the order of an
/// object: part, token, head. Adjacent rows are one span.
/// @pre the CPU can address the pool, and the heads are among the pool's
std::vector<std::span<std::byte>> handoff_rows(const device_layers& pool, uint32_t layer,
                                               page_index page, head_range heads, uint64_t rows);

} // namespace hicache
