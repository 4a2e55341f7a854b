#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hicache {

/// The process of a rank, as the ranks tell each other: what it takes to look at it from another
/// process of the same machine. Sent as bytes between processes of the same build.
struct rank_process {
  int64_t pid = 0;
  /// Clock ticks from the machine's boot to the process's start, since another process may come to
  /// have the same number; 0 if it could not be found out.
  uint64_t start_time = 0;
  /// The boot of the machine and the namespace in which `pid` counts; equal where /proc is.
  std::array<char, 96> machine{};

  /// This process.
  static rank_process self();
};

static_assert(std::is_trivially_copyable_v<rank_process>);

enum class process_state : uint8_t {
  /// It runs, or waits for something.
  alive,
  /// By a signal or a debugger.
  stopped,
  gone,
  /// It is on another machine or in another container, or /proc does not show it.
  unknown,
};

/// @relates rank_process
process_state look_at(const rank_process& which);

/// Names the ranks other than `me` that are stopped or gone: "rank 2 (process 1234) is stopped;
/// rank 3 (process 1235) is gone"; or says that which rank is missing cannot be told.
/// @param ranks Element r is rank r.
std::string describe_lost(const std::vector<rank_process>& ranks, uint32_t me);

} // namespace hicache
