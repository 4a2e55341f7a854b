#pragma once

#include "launch/replay_report.hpp"

#include <chrono>
#include <cstdint>

namespace hicache {

/// Shows on standard error how a replay gets on: one line that is redrawn on a terminal, plain
/// lines now and then elsewhere.
class progress_line {
public:
  /// @param shown Whether this rank speaks.
  progress_line(bool shown, uint64_t total_requests);

  void show(uint64_t done, const replay_totals& so_far);

  /// Leaves the terminal on a line of its own.
  void finish();

private:
  bool shown_;
  bool terminal_;
  bool drawn_ = false;
  uint64_t total_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_;
};

} // namespace hicache
