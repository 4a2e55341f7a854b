#pragma once

#include "backends/blocking_store.hpp"
#include "hicache/tls_files.hpp"

#include <caf/actor_system.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

/// What a store in a node is opened with.
struct node_backend_options {
  /// Where the node listens: a path of this machine, or HOST:PORT.
  std::string node;
  /// `fingerprint_of` the namespace of the pages.
  uint64_t fingerprint = 0;
  /// For a node at HOST:PORT.
  tls_files tls;
};

/// Keeps pages in a node, of this host or another one, where they stay when this process ends.
/// Looking for pages brings those of other members there. While the node is away everything is a
/// miss.
/// @param system Must outlive the store, as must the clock.
/// @returns peer_unreachable or deadline_exceeded if the node does not answer within
/// seconds, or why it lets nobody in
result<std::unique_ptr<blocking_store>> make_node_backend(caf::actor_system& system,
                                                          node_backend_options options,
                                                          const clock_source& clock);

} // namespace hicache
