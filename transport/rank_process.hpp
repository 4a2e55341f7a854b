#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hicache {

/// Identifies the process of a rank, so that other processes of the same machine can inspect it.
/// Sent as bytes between processes of the same build.
struct rank_process {
  int64_t pid = 0;
  /// Start of the process in clock ticks since boot, because pids are reused; 0 if unknown.
  uint64_t start_time = 0;
  /// Boot id of the machine and the pid namespace of `pid`; equal for processes that share /proc.
  std::array<char, 96> machine{};

  static rank_process self();
};

static_assert(std::is_trivially_copyable_v<rank_process>);

enum class process_state : uint8_t {
  /// Running or waiting.
  alive,
  /// Stopped by a signal or a debugger.
  stopped,
  gone,
  /// On another machine or in another container, or not visible in /proc.
  unknown,
};

/// @relates rank_process
process_state look_at(const rank_process& which);

/// Names the ranks other than `me` that are stopped or gone: "rank 2 (process 1234) is stopped;
/// rank 3 (process 1235) is gone"; or says that the missing rank cannot be determined.
/// @param ranks Element r is rank r.
std::string describe_lost(const std::vector<rank_process>& ranks, uint32_t me);

} // namespace hicache
