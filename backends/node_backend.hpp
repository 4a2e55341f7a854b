#pragma once

#include "backends/blocking_store.hpp"
#include "hicache/tls_files.hpp"

#include <caf/actor_system.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

struct node_backend_options {
  /// Address of the node: a path on this machine, or HOST:PORT.
  std::string node;
  /// `fingerprint_of` the namespace of the pages.
  uint64_t fingerprint = 0;
  /// For a node at HOST:PORT.
  tls_files tls;
};

/// Stores pages in a node, on this host or another one, where they outlive this process. A lookup
/// fetches pages of other members to the node. While the node is unreachable every page is a miss.
/// @param system Must outlive the store, as must the clock.
/// @returns peer_unreachable or deadline_exceeded if the node does not answer within seconds, or
/// the node's reason for refusing this client
result<std::unique_ptr<blocking_store>> make_node_backend(caf::actor_system& system,
                                                          node_backend_options options,
                                                          const clock_source& clock);

} // namespace hicache
