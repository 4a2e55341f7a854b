#pragma once

#include "cache/step/comparison_pace.hpp"
#include "hicache/error.hpp"
#include "messages/commands.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

namespace hicache {

/// What a rank's step waits for.
enum class step_phase : uint8_t {
  idle,
  /// The engine requested a step while steps are frozen. The step has not begun.
  held,
  /// Applying the changes of L3 that precede the step.
  beginning,
  /// Waiting for a notification or for the end of the engine's wait.
  collecting,
  /// The reduction is outstanding and the engine waits for its outcome.
  offered,
  /// The reduction is outstanding; the engine already received rank_unresponsive.
  expired,
  /// The outcome arrived after that; the repeated step takes it.
  late,
  /// Applying the outcome.
  settling,
};

/// Decides when the steps of one rank begin, enter their reduction and end, and what happens to
/// operations that arrive meanwhile. Maps events to actions, which the tree actor carries out in
/// order. Besides counts, the next action depends only on the phase, `is_frozen` and `is_alone`.
///
/// At most one reduction is outstanding, and each engine request is answered once: by `answer`,
/// `fail_step`, `report_missing`, `step_locally` or `step_alone`. Reads no clock: every event
/// carries the time. A value; single-threaded.
class step_machine {
public:
  /// Since any fixed moment of a steady clock.
  using time = std::chrono::nanoseconds;

  // -- events -----------------------------------------------------------------

  /// The engine requests a step.
  /// @pre !is_awaited()
  struct asked {
    /// How long to wait for a notification; 0: not at all.
    time wait{};
  };

  /// `begin` was carried out.
  struct begun {
    bool in_flight = false;
    bool has_pins = false;
    bool has_quarantine = false;
    bool has_news = false;
    /// Time until the next prefetch deadline; negative if it has expired.
    std::optional<time> next_deadline{};
  };

  /// An operation ended on this rank that a step can complete.
  struct news {};

  /// The timer of a `wait` fired; identified by its number.
  struct wait_over {
    uint64_t number = 0;
  };

  /// The timer of a wait for the other ranks fired.
  struct ranks_timer {};

  /// The reduction ended.
  struct reduced {
    result<std::vector<int64_t>> minimum;
  };

  /// `settle` was carried out.
  struct settled {
    /// ranks_diverged: from now on this rank steps alone.
    result<step_result> outcome;
    /// The time that the ranks agreed on.
    int64_t now_ns = 0;
    /// True if more ended than one step can complete.
    bool has_more = false;
  };

  /// Freezes: no step begins until a commit or an abort.
  struct frozen {};

  /// A change of L3 must be applied before the step of this number.
  /// @pre is_frozen(), before > steps_begun()
  struct committed {
    uint64_t before = 0;
  };

  /// There is no change; steps continue.
  struct aborted {};

  using event = std::variant<asked, begun, news, wait_over, ranks_timer, reduced, settled, frozen,
                             committed, aborted>;

  // -- actions ----------------------------------------------------------------

  /// Apply as many of the committed changes, oldest first; then raise `begun`. Always last.
  struct begin {
    size_t changes = 0;
  };

  /// Nothing to reduce: step the cache with the last agreed facts, and answer the engine.
  struct step_locally {};

  /// The ranks have diverged: step the cache with this rank's facts, and answer the engine.
  struct step_alone {};

  /// Raise `wait_over` with this number after this time.
  struct set_wait_timer {
    time after{};
    uint64_t number = 0;
  };

  /// Raise `ranks_timer` after this time.
  struct set_ranks_timer {
    time after{};
  };

  /// Enter the reduction with this rank's facts; raise `reduced` when it ends.
  struct offer {};

  /// Apply the minimum; then raise `settled`. Always last.
  struct settle {
    std::vector<int64_t> minimum;
  };

  struct answer {
    step_result outcome;
  };

  /// Answer the engine with an error.
  struct fail_step {
    error why;
  };

  /// Answer the engine with rank_unresponsive and the missing ranks.
  struct report_missing {};

  /// Notify the engine that a step would complete something.
  struct tell_engine {};

  /// Submit all deferred batches to `admit` again, oldest first.
  struct replay {};

  using action
    = std::variant<begin, step_locally, step_alone, set_wait_timer, set_ranks_timer, offer, settle,
                   answer, fail_step, report_missing, tell_engine, replay>;

  /// When a batch of operations is applied.
  enum class turn : uint8_t { now, after_step };

  // -- functions --------------------------------------------------------------

  /// @param patience How long to wait for the other ranks in a reduction.
  explicit step_machine(time patience) : patience_(patience) {}

  /// Handles an event. @returns the actions, in order.
  /// @pre the event can happen in this phase
  std::vector<action> handle(time now, const event& what);

  /// Admits a batch of operations. Batches that arrive during a step come after it on every rank.
  /// @param is_empty The batch has no operation.
  /// @returns limit_reached if too many are deferred; rank_unresponsive until a failed step is
  /// repeated.
  result<turn> admit(bool is_empty);

  step_phase phase() const noexcept { return static_cast<step_phase>(state_.index()); }

  bool is_awaited() const noexcept;

  bool is_frozen() const noexcept { return is_frozen_; }

  /// True if the ranks have diverged: there are no reductions any more.
  bool is_alone() const noexcept { return is_alone_; }

  /// Steps of the instance that have begun; a repeated step counts once.
  uint64_t steps_begun() const noexcept { return begun_; }

  uint64_t steps_asked() const noexcept { return asked_; }

private:
  // One for each step_phase, in its order.
  struct in_idle {};
  struct in_held {
    time wait{};
  };
  struct in_beginning {
    time wait{};
  };
  struct in_collecting {};
  struct in_offered {
    time deadline{};
  };
  struct in_expired {};
  struct in_late {
    result<std::vector<int64_t>> minimum;
  };
  struct in_settling {};

  using state = std::variant<in_idle, in_held, in_beginning, in_collecting, in_offered, in_expired,
                             in_late, in_settling>;

  void on(time now, const asked& what);
  void on(time now, const begun& what);
  void on(time now, const news&);
  void on(time now, const wait_over& what);
  void on(time now, const ranks_timer&);
  void on(time now, const reduced& what);
  void on(time now, const settled& what);
  void on(time now, const frozen&);
  void on(time now, const committed& what);
  void on(time now, const aborted&);

  void begin_step(time wait);

  void enter_reduction(time now);

  /// Starts the deadline of the other ranks.
  void await_ranks(time now);

  /// Takes the outcome of the reduction for the engine.
  void conclude(result<std::vector<int64_t>> minimum);

  void end_step(bool has_more);

  void tell();

  void replay_deferred();

  template <class Action>
  void act(Action what) {
    actions_.emplace_back(std::move(what));
  }

  time patience_;
  state state_;
  bool is_frozen_ = false;
  bool is_alone_ = false;
  uint64_t asked_ = 0;
  uint64_t begun_ = 0;
  /// Steps before which changes must be applied.
  std::deque<uint64_t> changes_;
  size_t deferred_ = 0;
  comparison_pace pace_;
  /// True after `tell_engine`, until the engine requests a step.
  bool has_told_ = false;
  /// One timer serves the deadlines of all steps: setting a timer wakes the clock's thread, which
  /// costs as much as the rest of a step.
  bool is_ranks_timer_set_ = false;
  /// Actions of the current event.
  std::vector<action> actions_;
};

} // namespace hicache
