#pragma once

#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"
#include "rpc/page_transfer.hpp"

#include <caf/actor_system.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// A leased page, and the target of its copy.
struct remote_read {
  page_key key;
  page_place from;
  /// As many bytes as the page has.
  std::span<const std::span<std::byte>> parts;
};

/// Transfers between a client and a node on another machine: messages of up to
/// limits::transfer_bytes, limits::transfers_in_flight of them per call. Any thread.
class remote_pages {
public:
  /// @param node A proxy from a connector.
  /// @param system, clock Must outlive this.
  remote_pages(caf::actor_system& system, const clock_source& clock, const node_actor& node);

  /// Writes reserved pages.
  /// @returns the checksum of each; if not all arrived, deadline_exceeded or the node's error
  result<std::vector<uint64_t>>
  write(uint64_t reservation, std::span<const page_write* const> pages, time_point deadline) const;

  /// Copies pages and verifies the copies.
  /// @param fingerprint Of their namespace.
  /// @returns per page: not_found if it was removed; corrupt_page; deadline_exceeded;
  /// peer_unreachable, or the node's error
  std::vector<result<void>> read(std::span<const remote_read> pages, uint64_t fingerprint,
                                 time_point deadline) const;

private:
  caf::actor_system* system_;
  const clock_source* clock_;
  page_carrier_actor node_;
};

} // namespace hicache
