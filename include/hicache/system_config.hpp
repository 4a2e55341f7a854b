#pragma once

#include <caf/actor_system_config.hpp>

#include <cstddef>

namespace hicache {

/// Configuration of a process's actor system: registers hicache's error codes, and runs actors on
/// one thread without delays. An engine with actors of its own starts its system from it.
class system_config : public caf::actor_system_config {
public:
  system_config();

  /// Number of threads that run the actors of CAF's pool; one by default.
  /// @pre count > 0
  system_config& with_threads(size_t count);
};

} // namespace hicache
