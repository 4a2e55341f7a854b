#pragma once

#include "messages/tls_files.hpp"

#include <caf/actor_system_config.hpp>
#include <caf/io/middleman_actor.hpp>

#include <cstddef>

namespace hicache {

/// Settings of one process's actor system. Announces every message type and error code, so a
/// program or test that starts from this class cannot forget one (CAF loses messages of unannounced
/// types silently).
class system_config : public caf::actor_system_config {
public:
  system_config();

  /// Threads that run the actors of CAF's pool; one by default.
  /// @pre count > 0
  system_config& with_threads(size_t count);

  /// Adds networking (messages/connection_guard.hpp). Heartbeats make CAF notice a peer that
  /// vanished without closing its connection.
  /// @param tls Makes every connection one of TLS, in which both sides show a certificate.
  /// @pre tls.check() succeeded
  system_config& with_network(const tls_files& tls = {});
};

/// The actor that opens ports and connects, with TLS if the system was configured so. Any other
/// way around it leads around TLS.
/// @pre networking is loaded
caf::io::middleman_actor network_of(caf::actor_system& system);

} // namespace hicache
