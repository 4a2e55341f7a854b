#pragma once

#include "hicache/clock.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace hicache {

enum class store_call : uint8_t { exists, get, set, remove };

/// Number of enumerators of `store_call`.
inline constexpr size_t store_call_count = 4;

enum class breaker_state : uint8_t {
  /// Calls go to the store.
  closed,
  /// One small batch at a time goes to the store, to see whether it works again.
  half_open,
  /// Nothing goes to the store: reads are misses, writes are dropped.
  open,
};

/// Why a breaker opened.
enum class breaker_cause : uint8_t {
  none,
  /// Calls did not return before their deadline.
  late,
  /// Calls returned with failures.
  failing,
  /// So many calls have not returned that no thread is left for another.
  stuck,
};

/// The name of a value as metrics and people see it ("half_open").
/// @relates store_breaker
const char* to_string(breaker_state state) noexcept;
const char* to_string(breaker_cause cause) noexcept;

/// Decides whether calls go to a store, by what became of the calls before (closed, open,
/// half-open). Reads and writes of a store have one each, because a disk that cannot be written
/// can often be read. A state machine of values: takes the time as an argument, asks nobody.
///
/// Opens after limits::breaker_failures failures in a row of calls of one kind, when half of the
/// last limits::breaker_window calls failed, or when limits::stuck_calls calls have not returned.
/// After a pause, which doubles each time, it lets one call at a time pass as a probe. It closes
/// when a probe of the kind that failed succeeds: a dead disk may still answer from its cache which
/// files there are.
class store_breaker {
public:
  /// What an admitted call shows when its outcome is known.
  struct pass {
    uint64_t period = 0;
    /// The call is to be small: others wait for its outcome.
    bool is_probe = false;
  };

  /// @returns nothing if the call must not go to the store.
  std::optional<pass> admit(time_point now);

  /// The outcome of an admitted call. One that was admitted in an earlier state is ignored.
  void succeeded(store_call call, pass shown, time_point now);
  void failed(store_call call, pass shown, breaker_cause cause, time_point now);

  /// How many calls of the store have passed their deadline and not returned.
  void set_stuck(size_t calls, time_point now);

  breaker_state state() const noexcept { return state_; }

  /// Why it opened last; none while closed.
  breaker_cause cause() const noexcept { return cause_; }

  /// When the state was entered.
  time_point since() const noexcept { return since_; }

  /// How often it went from closed to open.
  uint64_t openings() const noexcept { return openings_; }

private:
  void enter(breaker_state state, time_point now);
  void open(store_call call, breaker_cause cause, time_point now);
  bool window_is_bad() const noexcept;

  breaker_state state_ = breaker_state::closed;
  breaker_cause cause_ = breaker_cause::none;
  time_point since_{};
  /// Numbers the states entered.
  uint64_t period_ = 0;
  uint64_t openings_ = 0;
  /// Failures since a call of that kind succeeded: of pages that cannot be read, a store may still
  /// know that they are there.
  std::array<uint32_t, store_call_count> in_a_row_{};
  /// The last calls, the latest in the lowest bit; 1: failed.
  uint64_t window_ = 0;
  uint32_t seen_ = 0;
  size_t stuck_ = 0;
  /// Open: until when; and how long it was open this time.
  time_point until_{};
  duration pause_{};
  /// Which kind has to succeed.
  store_call failed_call_ = store_call::exists;
  bool is_probing_ = false;
};

} // namespace hicache
