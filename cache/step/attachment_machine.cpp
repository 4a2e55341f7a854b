#include "cache/step/attachment_machine.hpp"

#include "base/check.hpp"

#include <algorithm>

namespace hicache {

namespace {

using phases = attachment_phase;
using storage_action = storage_change::action;

} // namespace

std::vector<attachment_machine::action> attachment_machine::start() {
  listen();
  return std::exchange(actions_, {});
}

std::vector<attachment_machine::action> attachment_machine::handle(time now, const event& what) {
  std::visit([&](const auto& each) { on(now, each); }, what);
  return std::exchange(actions_, {});
}

// -- requests -----------------------------------------------------------------

void attachment_machine::on(time, const asked& what) {
  HICACHE_CHECK(rank_ == 0 && phase_ == phases::idle);
  act(phases::listening, announce{what.what});
}

void attachment_machine::on(time, const asked_to_end&) {
  is_ending_ = true;
  if (phase_ == phases::over)
    act(end{});
  else if (phase_ == phases::idle)
    listen();
}

void attachment_machine::on(time now, const heard& what) {
  HICACHE_CHECK(phase_ == phases::listening);
  if (!what.what) {
    is_broken_ = true;
    return conclude(tl::unexpected{what.what.error()});
  }
  current_ = *what.what;
  until_ = now + current_.patience;
  failure_.reset();
  if (current_.is_end) {
    is_ending_ = true;
    return act(phases::over, end{});
  }
  if (current_.wanted.backend.empty())
    return is_attached() ? begin_change(storage_action::detach) : conclude({});
  if (current_.wanted.backend == attached_)
    return act(phases::opening, prepare{current_.wanted, current_.patience});
  if (is_attached())
    return send_vote(question::opened, fail(ec::invalid_argument,
                                            "the backend " + attached_
                                              + " is attached; expected it to be detached first"));
  act(phases::opening, open{current_.wanted});
}

// -- votes --------------------------------------------------------------------

void attachment_machine::on(time, const opened& what) {
  HICACHE_CHECK(phase_ == phases::opening);
  send_vote(question::opened, what.outcome);
}

void attachment_machine::on(time, const voted& what) {
  HICACHE_CHECK(phase_ == phases::voting || phase_ == phases::closing);
  if (!what.failed) {
    is_broken_ = true;
    return decide(tl::unexpected{what.failed.error()});
  }
  if (!*what.failed)
    return decide({});
  HICACHE_CHECK(phase_ == phases::voting);
  const auto speaker = **what.failed;
  act(phases::explaining,
      explain{speaker, speaker == rank_ ? mine_.error() : error{}, current_.patience + patience_});
}

void attachment_machine::on(time, const explained& what) {
  HICACHE_CHECK(phase_ == phases::explaining);
  is_broken_ |= what.is_broken;
  decide(tl::unexpected{what.why});
}

// -- changes ------------------------------------------------------------------

void attachment_machine::on(time, const frozen& what) {
  HICACHE_CHECK(phase_ == phases::freezing);
  if (!what.begun)
    return conclude(tl::unexpected{what.begun.error()});
  act(phases::fixing, fix{*what.begun});
}

void attachment_machine::on(time, const fixed& what) {
  HICACHE_CHECK(phase_ == phases::fixing);
  if (!what.begun) {
    is_broken_ = true;
    act(abort{});
    return conclude(tl::unexpected{what.begun.error()});
  }
  auto wait = std::optional<time>{};
  if (change_ == storage_action::detach)
    wait = current_.patience;
  act(phases::applying, commit{change_, *what.begun + 1, wait});
  if (change_ == storage_action::attach)
    conclude(failure_ ? result<void>{tl::unexpected{*failure_}} : result<void>{});
}

void attachment_machine::on(time now, const applied& what) {
  HICACHE_CHECK(phase_ == phases::applying);
  if (change_ == storage_action::release) {
    attached_.clear();
    act(close_store{});
    return send_vote(question::closed, {});
  }
  if (!what.outcome)
    return send_vote(question::drained, fail(ec::deadline_exceeded, "the engine makes no steps"));
  act(phases::draining_reads, drain_reads{std::max(until_ - now, time{1})});
}

void attachment_machine::on(time now, const drained& what) {
  const auto reads = phase_ == phases::draining_reads;
  HICACHE_CHECK(reads || phase_ == phases::draining_writes);
  if (!what.outcome)
    return send_vote(question::drained, what.outcome);
  if (!reads)
    return send_vote(question::drained, {});
  act(phases::draining_writes, drain_writes{std::max(until_ - now, time{1})});
}

// -- internal steps -----------------------------------------------------------

void attachment_machine::listen() {
  if (rank_ != 0)
    act(phases::listening, announce{});
  else if (is_ending_)
    act(phases::listening, announce{request{.is_end = true}});
  else
    phase_ = phases::idle;
}

void attachment_machine::send_vote(question about, result<void> mine) {
  asked_about_ = about;
  mine_ = std::move(mine);
  if (about == question::closed)
    act(phases::closing, vote{});
  else
    act(phases::voting, vote{mine_.has_value(), current_.patience + patience_});
}

void attachment_machine::decide(const result<void>& all) {
  if (asked_about_ == question::closed)
    return conclude(all);
  if (asked_about_ == question::drained) {
    if (!all)
      failure_ = all.error();
    return begin_change(all ? storage_action::release : storage_action::attach);
  }
  // A vote on another configuration of the store in use: the trees take no part in such a change.
  const auto is_preparation = is_attached();
  if (!all) {
    if (is_preparation)
      act(revert{});
    else
      act(discard_store{});
    return conclude(all);
  }
  if (is_preparation) {
    act(adopt{});
    return send_vote(question::closed, {});
  }
  attached_ = current_.wanted.backend;
  act(use_store{});
  begin_change(storage_action::attach);
}

void attachment_machine::begin_change(storage_action what) {
  change_ = what;
  act(phases::freezing, freeze{});
}

void attachment_machine::conclude(const result<void>& outcome) {
  act(answer{outcome});
  if (is_broken_)
    act(phases::over, end{});
  else
    listen();
}

} // namespace hicache
