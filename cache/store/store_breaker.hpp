#pragma once

#include "hicache/clock.hpp"
#include "hicache/storage_policies.hpp"

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
  /// One small batch at a time goes to the store as a probe.
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
  /// Too many calls have not returned: no thread is left for another.
  stuck,
};

/// Name for metrics and logs ("half_open").
/// @relates store_breaker
const char* to_string(breaker_state state) noexcept;
const char* to_string(breaker_cause cause) noexcept;

/// Circuit breaker (closed, open, half-open): decides from the outcomes of earlier calls whether
/// calls go to a store. Reads and writes of a store have one breaker each, because a disk that
/// cannot be written can often be read. A pure state machine; time is an argument.
///
/// Opens after breaker_policy::failures consecutive failures of one kind of call, when half of the
/// last limits::breaker_window calls failed, or when limits::stuck_calls calls have not returned.
/// After a pause, which doubles each time, it admits one call at a time as a probe. Closes when a
/// probe of the kind that failed succeeds: a dead disk may still list its files from its cache.
class store_breaker {
public:
  /// Returned with the outcome of an admitted call.
  struct pass {
    uint64_t period = 0;
    /// The call must be small: other calls wait for its outcome.
    bool is_probe = false;
  };

  explicit store_breaker(const breaker_policy& policy = {}) : policy_(policy) {}

  /// @returns nothing if the call must not go to the store.
  std::optional<pass> admit(time_point now);

  /// Outcome of an admitted call; ignored if the state has changed since.
  void succeeded(store_call call, pass shown, time_point now);
  void failed(store_call call, pass shown, breaker_cause cause, time_point now);

  /// Sets the number of calls that have passed their deadline and not returned.
  void set_stuck(size_t calls, time_point now);

  breaker_state state() const noexcept { return state_; }

  /// Why it last opened; none while closed.
  breaker_cause cause() const noexcept { return cause_; }

  /// When the state was entered.
  time_point since() const noexcept { return since_; }

  /// Number of transitions from closed to open.
  uint64_t openings() const noexcept { return openings_; }

private:
  void enter(breaker_state state, time_point now);
  void open(store_call call, breaker_cause cause, time_point now);
  bool window_is_bad() const noexcept;

  breaker_policy policy_;
  breaker_state state_ = breaker_state::closed;
  breaker_cause cause_ = breaker_cause::none;
  time_point since_{};
  /// Numbers the states entered.
  uint64_t period_ = 0;
  uint64_t openings_ = 0;
  /// Failures per kind since its last success: a store may still list pages that it cannot read.
  std::array<uint32_t, store_call_count> in_a_row_{};
  /// The last calls, the latest in the lowest bit; 1: failed.
  uint64_t window_ = 0;
  uint32_t seen_ = 0;
  size_t stuck_ = 0;
  /// While open: until when, and the length of this pause.
  time_point until_{};
  duration pause_{};
  /// The kind of call that has to succeed.
  store_call failed_call_ = store_call::exists;
  bool is_probing_ = false;
};

} // namespace hicache
