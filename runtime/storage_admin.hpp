#pragma once

#include "hicache/error.hpp"
#include "messages/commands.hpp"

#include <chrono>
#include <optional>

namespace hicache {

/// Looks at the L3 of an instance and changes it while the instance serves. Calls block; any
/// thread.
class storage_admin {
public:
  virtual ~storage_admin() = default;

  /// What is attached now.
  virtual storage_attachment show() = 0;

  /// Which calls go to what is attached, as rank 0 sees it; nothing if it is not known.
  virtual std::optional<storage_status> status() = 0;

  /// Attaches L3. All ranks attach or none does.
  /// @param wanted Names a backend. An extra config is the text of a JSON object, never a file.
  /// @param deadline How long it may take.
  /// @returns invalid_argument with a sentence that names what was wrong, also where L3 is attached
  /// already ("detach first"); deadline_exceeded; rank_unresponsive; stopping; else what a rank
  /// could not do.
  virtual result<void> attach(const storage_attachment& wanted, std::chrono::nanoseconds deadline)
    = 0;

  /// Detaches L3: starts nothing new there and lets what is in flight end until the deadline. All
  /// ranks detach or none does. Detaching what is detached succeeds.
  /// @returns deadline_exceeded, rank_unresponsive or stopping.
  virtual result<void> detach(std::chrono::nanoseconds deadline) = 0;
};

} // namespace hicache
