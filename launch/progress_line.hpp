#pragma once

#include "launch/replay_report.hpp"

#include <chrono>
#include <cstdint>

namespace hicache {

/// Progress of a replay on standard error: a redrawn line on a terminal, else occasional lines.
class progress_line {
public:
  /// @param shown Whether this rank prints.
  progress_line(bool shown, uint64_t total_requests);

  void show(uint64_t done, const replay_totals& so_far);

  /// Ends the redrawn line with a newline.
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
