#pragma once

#include <caf/actor_system_config.hpp>

#include <cstddef>

namespace hicache {

/// Settings of one process's actor system: announces hicache's error codes, and runs actors on one
/// thread without delays. An engine that has actors starts its own system from it.
class system_config : public caf::actor_system_config {
public:
  system_config();

  /// Threads that run the actors of CAF's pool; one by default.
  /// @pre count > 0
  system_config& with_threads(size_t count);
};

} // namespace hicache
