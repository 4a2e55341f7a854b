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
  /// No step is open.
  idle,
  /// The engine asked while steps are frozen. The step has not begun.
  held,
  /// The changes of L3 that belong before the step are being applied.
  beginning,
  /// Waits for news or for the end of the engine's wait.
  collecting,
  /// The reduction is outstanding and the engine waits for its outcome.
  offered,
  /// The reduction is outstanding; the engine was told that a rank is unresponsive.
  expired,
  /// The outcome came after that. The repeated step takes it.
  late,
  /// The outcome is being applied.
  settling,
};

/// Decides when the steps of one rank begin, enter their reduction and end, and what happens to
/// operations that arrive meanwhile. Events go in, actions come out; the tree actor carries them
/// out in order. The phase, `is_frozen` and `is_alone` are the whole state as far as the next
/// action depends on it, but for counts.
///
/// At most one reduction is outstanding, and each request of the engine is answered once: by
/// `answer`, `fail_step`, `report_missing`, `step_locally` or `step_alone`. Knows no clock: every
/// event comes with the time. A value; single-threaded.
class step_machine {
public:
  /// Since any fixed moment of a steady clock.
  using time = std::chrono::nanoseconds;

  // -- events -----------------------------------------------------------------

  /// The engine asks for a step.
  /// @pre !is_awaited()
  struct asked {
    /// How long to wait for news; 0: not at all.
    time wait{};
  };

  /// `begin` was carried out.
  struct begun {
    bool in_flight = false;
    bool has_pins = false;
    bool has_quarantine = false;
    bool has_news = false;
    /// When the next prefetch is over by its policy, from now on; negative if that is past.
    std::optional<time> next_stop{};
  };

  /// Something ended on this rank that a step can turn into a fact.
  struct news {};

  /// The timer of a `wait` for news; with its number.
  struct wait_over {
    uint64_t number = 0;
  };

  /// The timer of a wait for the other ranks.
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
    /// True if more ended than one step can turn into facts.
    bool has_more = false;
  };

  /// No step begins until a commit or an abort.
  struct frozen {};

  /// A change of L3 is to be applied before the step of this number.
  /// @pre is_frozen(), before > steps_begun()
  struct committed {
    uint64_t before = 0;
  };

  /// There is no change; steps go on.
  struct aborted {};

  using event = std::variant<asked, begun, news, wait_over, ranks_timer, reduced, settled, frozen,
                             committed, aborted>;

  // -- actions ----------------------------------------------------------------

  /// Apply as many of the committed changes, oldest first; then hand in `begun`. Always last.
  struct begin {
    size_t changes = 0;
  };

  /// The ranks have nothing to agree on: step the cache with what they agreed on before, and answer
  /// the engine.
  struct step_locally {};

  /// The ranks' caches differ: step the cache with what this rank knows, and answer the engine.
  struct step_alone {};

  /// Hand in `wait_over` with this number after this time.
  struct set_wait_timer {
    time after{};
    uint64_t number = 0;
  };

  /// Hand in `ranks_timer` after this time.
  struct set_ranks_timer {
    time after{};
  };

  /// Enter the reduction with what this rank knows; hand in `reduced` when it has ended.
  struct offer {};

  /// Apply the minimum; then hand in `settled`. Always last.
  struct settle {
    std::vector<int64_t> minimum;
  };

  /// Answer the engine.
  struct answer {
    step_result outcome;
  };

  /// Answer the engine with an error.
  struct fail_step {
    error why;
  };

  /// Answer the engine with rank_unresponsive and the ranks that are missing.
  struct report_missing {};

  /// Tell the engine that a step would bring something.
  struct tell_engine {};

  /// Ask `admit` again for all batches that it deferred, oldest first.
  struct replay {};

  using action
    = std::variant<begin, step_locally, step_alone, set_wait_timer, set_ranks_timer, offer, settle,
                   answer, fail_step, report_missing, tell_engine, replay>;

  /// When a batch of operations is applied.
  enum class turn : uint8_t { now, after_step };

  // -- functions --------------------------------------------------------------

  /// @param patience How long the other ranks have to enter a reduction.
  explicit step_machine(time patience) : patience_(patience) {}

  /// Takes an event. @returns what to do, in order.
  /// @pre The event can happen in this phase.
  std::vector<action> handle(time now, const event& what);

  /// A batch of operations arrives. Those that arrive during a step come after it on every rank.
  /// @param is_empty True if the batch has no operation.
  /// @returns limit_reached if too many are deferred; rank_unresponsive while a failed step has to
  /// be repeated.
  result<turn> admit(bool is_empty);

  step_phase phase() const noexcept { return static_cast<step_phase>(state_.index()); }

  /// True while the engine waits for an answer.
  bool is_awaited() const noexcept;

  bool is_frozen() const noexcept { return is_frozen_; }

  /// True if the ranks' caches differ: no step is agreed on any more.
  bool is_alone() const noexcept { return is_alone_; }

  /// Steps of the instance that have begun; a step that is repeated counts once.
  uint64_t steps_begun() const noexcept { return begun_; }

  /// Requests of the engine so far.
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

  /// Gives the other ranks their time, from now on.
  void await_ranks(time now);

  /// Takes the outcome of the reduction for the engine.
  void conclude(result<std::vector<int64_t>> minimum);

  /// The step has ended.
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
  /// Before which steps changes are to be applied.
  std::deque<uint64_t> changes_;
  size_t deferred_ = 0;
  comparison_pace pace_;
  /// True after `tell_engine`, until the engine asks for a step.
  bool has_told_ = false;
  /// One timer serves the deadlines of all steps: setting one wakes the clock's thread, which costs
  /// as much as the rest of a step.
  bool is_ranks_timer_set_ = false;
  /// What the current event leads to.
  std::vector<action> actions_;
};

} // namespace hicache
