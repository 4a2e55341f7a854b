#include "cache/step/step_machine.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

std::vector<step_machine::action> step_machine::handle(time now, const event& what) {
  // The event of an action follows it immediately.
  HICACHE_CHECK((phase() == step_phase::beginning) == std::holds_alternative<begun>(what));
  HICACHE_CHECK((phase() == step_phase::settling) == std::holds_alternative<settled>(what));
  std::visit([&](const auto& each) { on(now, each); }, what);
  return std::exchange(actions_, {});
}

result<step_machine::turn> step_machine::admit(bool is_empty) {
  HICACHE_CHECK(phase() != step_phase::beginning && phase() != step_phase::settling);
  if (phase() == step_phase::expired || phase() == step_phase::late)
    return fail(ec::rank_unresponsive, "the last step failed; repeat it first");
  if (phase() == step_phase::idle) {
    if (!is_empty)
      pace_.note_change();
    return turn::now;
  }
  if (deferred_ == limits::deferred_batches)
    return fail(ec::limit_reached, "too many operations behind an open step");
  ++deferred_;
  return turn::after_step;
}

bool step_machine::is_awaited() const noexcept {
  return phase() != step_phase::idle && phase() != step_phase::expired
         && phase() != step_phase::late;
}

// -- events -------------------------------------------------------------------

void step_machine::on(time now, const asked& what) {
  HICACHE_CHECK(!is_awaited());
  ++asked_;
  has_told_ = false;
  if (auto* outcome = std::get_if<in_late>(&state_))
    conclude(std::move(outcome->minimum));
  else if (phase() == step_phase::expired)
    await_ranks(now);
  else if (is_frozen_)
    state_ = in_held{what.wait};
  else
    begin_step(what.wait);
}

void step_machine::on(time now, const begun& what) {
  if (is_alone_) {
    act(step_alone{});
    return end_step(false);
  }
  // Equal on all ranks, so all check the quarantine in the same steps.
  const auto looks_at_quarantine = what.has_quarantine && begun_ % limits::quarantine_steps == 0;
  if (!what.in_flight && !pace_.is_due(what.has_pins) && !looks_at_quarantine) {
    act(step_locally{});
    return end_step(false);
  }
  const auto wait = std::get<in_beginning>(state_).wait;
  if (wait <= time{0} || what.has_news || !what.in_flight)
    return enter_reduction(now);
  state_ = in_collecting{};
  act(set_wait_timer{std::clamp(what.next_deadline.value_or(wait), time{0}, wait), asked_});
}

void step_machine::on(time now, const news&) {
  if (phase() == step_phase::collecting)
    enter_reduction(now);
  else if (phase() == step_phase::idle)
    tell();
}

void step_machine::on(time now, const wait_over& what) {
  if (phase() == step_phase::collecting && what.number == asked_)
    enter_reduction(now);
}

void step_machine::on(time now, const ranks_timer&) {
  is_ranks_timer_set_ = false;
  const auto* open = std::get_if<in_offered>(&state_);
  if (open == nullptr)
    return;
  if (const auto left = open->deadline - now; left > time{0}) {
    // The timer was set for an earlier step.
    is_ranks_timer_set_ = true;
    return act(set_ranks_timer{left});
  }
  state_ = in_expired{};
  act(report_missing{});
  replay_deferred();
}

void step_machine::on(time, const reduced& what) {
  HICACHE_CHECK(phase() == step_phase::offered || phase() == step_phase::expired);
  if (phase() == step_phase::offered)
    conclude(what.minimum);
  else
    state_ = in_late{what.minimum};
}

void step_machine::on(time, const settled& what) {
  if (!what.outcome && what.outcome.error().code == ec::ranks_diverged)
    is_alone_ = true;
  else
    pace_.note_agreement(what.now_ns);
  if (what.outcome)
    act(answer{*what.outcome});
  else
    act(fail_step{what.outcome.error()});
  end_step(what.has_more);
}

void step_machine::on(time, const frozen&) {
  is_frozen_ = true;
}

void step_machine::on(time now, const committed& what) {
  HICACHE_CHECK(is_frozen_ && what.before > begun_);
  changes_.push_back(what.before);
  is_frozen_ = false;
  // A change counts as news, so the step before it does not wait for any.
  if (phase() == step_phase::held)
    begin_step(time{0});
  else
    on(now, news{});
}

void step_machine::on(time, const aborted&) {
  is_frozen_ = false;
  if (const auto* waiting = std::get_if<in_held>(&state_))
    begin_step(waiting->wait);
}

// -- steps --------------------------------------------------------------------

void step_machine::begin_step(time wait) {
  ++begun_;
  pace_.note_step();
  auto due = size_t{0};
  for (; !changes_.empty() && changes_.front() <= begun_; ++due)
    changes_.pop_front();
  if (due > 0)
    pace_.note_change();
  state_ = in_beginning{wait};
  act(begin{due});
}

void step_machine::enter_reduction(time now) {
  await_ranks(now);
  act(offer{});
}

void step_machine::await_ranks(time now) {
  state_ = in_offered{now + patience_};
  if (!std::exchange(is_ranks_timer_set_, true))
    act(set_ranks_timer{patience_});
}

void step_machine::conclude(result<std::vector<int64_t>> minimum) {
  if (minimum) {
    state_ = in_settling{};
    return act(settle{std::move(*minimum)});
  }
  act(fail_step{minimum.error()});
  if (minimum.error().code != ec::rank_unresponsive)
    return end_step(false);
  // The communicator is broken for good; a repeated step fails again.
  state_ = in_late{std::move(minimum)};
  replay_deferred();
}

void step_machine::end_step(bool has_more) {
  state_ = in_idle{};
  // An engine that sleeps until notified must make the step before which a change applies.
  if (has_more || !changes_.empty())
    tell();
  replay_deferred();
}

void step_machine::tell() {
  if (!std::exchange(has_told_, true))
    act(tell_engine{});
}

void step_machine::replay_deferred() {
  if (std::exchange(deferred_, 0) > 0)
    act(replay{});
}

} // namespace hicache
