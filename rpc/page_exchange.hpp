#pragma once

#include "base/page_checksum.hpp"
#include "hicache/error.hpp"
#include "messages/node_protocol.hpp"
#include "rpc/page_transfer.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace hicache {

/// What one client on another machine writes to the memory of a node, and reads from it. It writes
/// only where the node has reserved pages for it, until it says that a reservation ends, and a
/// commit passes only if all bytes of its pages came and fit their checksums. What a client says is
/// not trusted: whatever it gets wrong is an error for it. Not thread-safe: all of a client's
/// requests have to come here in the order in which the node's actor gets them.
class page_exchange {
public:
  /// @param memory The node's. Must outlive this.
  explicit page_exchange(std::span<std::byte> memory) : memory_(memory) {}

  /// The node has answered the client, key by key.
  void reserved(std::span<const page_key> keys, const reserved_pages& got);

  /// Copies bytes to pages that are reserved. Of each page they come from the first to the last.
  /// @param bytes Of the pieces, one after the other.
  /// @returns unknown_id if the client has no such reservation; invalid_argument if the pieces are
  /// not the next bytes of pages in it, or have other lengths than the bytes; limit_reached if too
  /// many pages are written at a time
  result<void> write(uint64_t reservation, std::span<const page_piece> pieces,
                     std::span<const std::byte> bytes);

  /// Whether the client may commit.
  /// @returns unknown_id if it has no such reservation; invalid_argument if a page is not in it or
  /// not complete; corrupt_page if its bytes do not fit the checksum
  result<void> check(const complete_pages& complete) const;

  /// The client commits or aborts: nothing is written there from now on.
  void end(uint64_t reservation);

  /// Copies a range of a page, if it is there.
  /// @pre `to` has the range's length
  range_origin read(const page_range& wanted, std::span<std::byte> to) const;

private:
  /// A page that is reserved.
  struct arrival {
    /// Where its object goes.
    std::span<std::byte> object;
    size_t written = 0;
    /// Of what is written; kept until all is.
    std::optional<running_checksum> sum;
    uint64_t checksum = 0;
  };

  using arrivals = absl::flat_hash_map<page_key, arrival, std::hash<page_key>>;

  result<void> append(arrivals& pages, const page_piece& piece, std::span<const std::byte> bytes);

  std::span<std::byte> memory_;
  absl::flat_hash_map<uint64_t, arrivals> reservations_;
  /// Pages of which a part has come.
  size_t begun_ = 0;
};

} // namespace hicache
