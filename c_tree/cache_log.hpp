#pragma once

#include "base/immovable.hpp"
#include "hicache.h"

#include <memory>
#include <string>

namespace hicache {

/// Sends hicache's log lines to a caller's callback during its lifetime. Actors log to spdlog's
/// default logger, of which a process has one: so each listener receives the lines of all caches,
/// and the previous default logger is restored when the last listener is destroyed.
class log_listener : immovable {
public:
  /// @param log May be null: log lines are dropped, not printed.
  /// @param level A value of --log-level.
  log_listener(hc_log log, void* user, const std::string& level);

  /// Afterwards the callback is not called any more.
  ~log_listener();

private:
  class hub;
};

} // namespace hicache
