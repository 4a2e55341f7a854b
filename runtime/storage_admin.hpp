#pragma once

#include "hicache/error.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/commands.hpp"

#include <chrono>
#include <optional>
#include <vector>

namespace hicache {

/// Shows and changes the L3 of a running instance. Calls block; any thread.
class storage_admin {
public:
  virtual ~storage_admin() = default;

  virtual storage_attachment show() = 0;

  /// Circuit-breaker state of the attached store as seen by rank 0; nothing if unknown.
  virtual std::optional<storage_status> status() = 0;

  /// Healths of the stores that L3 is made of on rank 0, in their order; empty if it is one store,
  /// or does not answer.
  virtual std::vector<tier_health> tiers() = 0;

  /// Attaches L3 on all ranks or on none. If `tiered` is attached, the same again with one tier
  /// more or one less adds that tier or takes it out.
  /// @param wanted Names a backend. An extra config is JSON text, never a file.
  /// @param deadline Time limit for the change.
  /// @returns invalid_argument with a sentence that names what was wrong, also if L3 is already
  /// attached ("detach first"); deadline_exceeded; rank_unresponsive; stopping; else the error of a
  /// rank
  virtual result<void> attach(const storage_attachment& wanted, std::chrono::nanoseconds deadline)
    = 0;

  /// Detaches L3 on all ranks or on none: starts no new operations and lets those in flight finish
  /// until the deadline. Succeeds if nothing is attached.
  /// @returns deadline_exceeded, rank_unresponsive or stopping
  virtual result<void> detach(std::chrono::nanoseconds deadline) = 0;
};

} // namespace hicache
