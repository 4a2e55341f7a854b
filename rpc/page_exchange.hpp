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

/// The page bytes that one client on another machine writes to and reads from a node's memory.
/// Writes go only to pages of the client's open reservations, and a commit passes only if all bytes
/// of its pages arrived and match their checksums. The client is untrusted: its mistakes are errors
/// for it alone. Not thread-safe: all requests of a client must arrive here in the order in which
/// the node's actor receives them.
class page_exchange {
public:
  /// @param memory The node's. Must outlive this.
  explicit page_exchange(std::span<std::byte> memory) : memory_(memory) {}

  /// Records the node's reply to a reservation, by key.
  void reserved(std::span<const page_key> keys, const reserved_pages& got);

  /// Copies bytes to reserved pages. The bytes of each page must arrive in order.
  /// @param bytes Of the pieces, concatenated.
  /// @returns unknown_id if the client has no such reservation; invalid_argument if the pieces are
  /// not the next bytes of its pages, or their lengths do not add up to the bytes; limit_reached if
  /// too many pages are partly written
  result<void> write(uint64_t reservation, std::span<const page_piece> pieces,
                     std::span<const std::byte> bytes);

  /// Whether the client may commit.
  /// @returns unknown_id if it has no such reservation; invalid_argument if a page is not in it or
  /// not complete; corrupt_page if its bytes do not fit the checksum
  result<void> check(const complete_pages& complete) const;

  /// Ends a reservation on commit or abort; further writes to it fail.
  void end(uint64_t reservation);

  /// Copies a range of a page if it is there.
  /// @pre `to` has the range's length
  range_origin read(const page_range& wanted, std::span<std::byte> to) const;

private:
  /// A reserved page.
  struct arrival {
    /// The target of its object.
    std::span<std::byte> object;
    size_t written = 0;
    /// Of the bytes written; reset when all have arrived.
    std::optional<running_checksum> sum;
    uint64_t checksum = 0;
  };

  using arrivals = absl::flat_hash_map<page_key, arrival, std::hash<page_key>>;

  result<void> append(arrivals& pages, const page_piece& piece, std::span<const std::byte> bytes);

  std::span<std::byte> memory_;
  absl::flat_hash_map<uint64_t, arrivals> reservations_;
  /// Number of partly written pages.
  size_t begun_ = 0;
};

} // namespace hicache
