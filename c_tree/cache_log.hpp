#pragma once

#include "hicache.h"

#include <memory>
#include <string>

namespace hicache {

/// As long as it lives, a caller's callback gets the lines of hicache. Actors log by spdlog's
/// default logger, which there is once in a process: so each listener gets the lines of all caches,
/// and the logger that was there before is the default one again when the last of them is gone.
class log_listener {
public:
  /// @param log May be null: nothing is heard, and nothing is printed.
  /// @param level As --log-level has it.
  log_listener(hc_log log, void* user, const std::string& level);

  log_listener(const log_listener&) = delete;

  log_listener& operator=(const log_listener&) = delete;

  /// The callback is not called any more afterwards.
  ~log_listener();

private:
  class hub;
};

} // namespace hicache
