#include "actors/tree.hpp"

#include "actors/cache_events.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

namespace {

constexpr uint8_t news_timer = 0;
constexpr uint8_t ranks_timer = 1;

template <class... Handlers>
struct overload : Handlers... {
  using Handlers::operator()...;
};

template <class... Handlers>
overload(Handlers...) -> overload<Handlers...>;

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<tree_answers> tree_state::apply(const tree_operations& operations) {
  if (!open)
    return apply_now(operations);
  if (!open->promise)
    return to_caf({ec::rank_unresponsive, "the last step failed; repeat it first"});
  if (waiting.size() >= limits::deferred_batches)
    return to_caf({ec::limit_reached, "too many operations behind an open step"});
  return waiting.emplace_back(deferred{operations, self->make_response_promise<tree_answers>()})
    .promise;
}

caf::result<step_result> tree_state::step(caf::timespan wait) {
  if (open && open->promise)
    return to_caf({ec::invalid_argument, "a step is open already"});
  ++counters.steps;
  ++step_number;
  if (alone)
    return step_alone();
  if (!open && !core->in_flight()) {
    // Nothing to agree on; the tree may still top up the prefetcher's reserve, on every rank alike.
    auto facts = known;
    facts.fetched.clear();
    step_core(facts, {});
    dispatch();
    return step_result{};
  }
  auto promise = self->make_response_promise<step_result>();
  if (!open)
    open.emplace();
  open->promise = promise;
  if (open->late)
    conclude(*std::exchange(open->late, std::nullopt));
  else if (open->offered)
    self->delayed_send(self, step_timeout, atom::tick_v, ranks_timer, step_number);
  else if (wait.count() == 0 || has_news())
    offer();
  else
    self->delayed_send(self, wait, atom::tick_v, news_timer, step_number);
  return promise;
}

void tree_state::done(const operation_done& fact) {
  switch (fact.kind) {
    case operation_kind::write:
      writes.complete(fact.id);
      break;
    case operation_kind::load:
      loads.complete(fact.id);
      break;
    case operation_kind::backup:
      backups.complete(fact.id);
      break;
  }
  copy_failed |= !fact.ok;
  if (open && open->promise && !open->offered && has_news())
    offer();
}

void tree_state::fetched(const fetched_pages& fact) {
  arrived[fact.id] = fact.host_pages;
  if (open && open->promise && !open->offered && has_news())
    offer();
}

void tree_state::tick(uint8_t timer, uint64_t number) {
  if (!open || !open->promise || number != step_number)
    return; // The step it was set for is over.
  if (timer == news_timer) {
    if (!open->offered)
      offer();
    return;
  }
  ++counters.errors;
  auto promise = *std::exchange(open->promise, std::nullopt);
  promise.deliver(to_caf({ec::rank_unresponsive, "the step's reduction did not finish in time"}));
  for (auto& batch : std::exchange(waiting, {}))
    batch.promise.deliver(to_caf({ec::rank_unresponsive, "the step before did not finish"}));
}

// -- internal steps -----------------------------------------------------------

tree_answers tree_state::apply_now(const tree_operations& operations) {
  auto answers = tree_answers{};
  answers.list.reserve(operations.list.size());
  for (const auto& operation : operations.list) {
    answers.list.push_back(hicache::apply(*core, operation));
    note(operation);
  }
  dispatch();
  return answers;
}

void tree_state::dispatch() {
  auto copies = copy_batch{};
  for (auto& effect : core->take_effects())
    std::visit(
      overload{
        [&](write_command& x) { copies.writes.push_back(std::move(x)); },
        [&](load_command& x) { copies.loads.push_back(std::move(x)); },
        [&](backup_command& x) { self->send(helpers.backup, atom::backup_v, std::move(x)); },
        [&](fetch_command& x) { self->send(helpers.prefetcher, atom::fetch_v, std::move(x)); },
        [&](terminate_command& x) { self->send(helpers.prefetcher, atom::terminate_v, x); },
        [&](refill_command& x) { self->send(helpers.prefetcher, atom::refill_v, std::move(x)); },
      },
      effect);
  if (!copies.writes.empty() || !copies.loads.empty())
    self->send(helpers.controller, atom::copy_v, std::move(copies));
  if (auto events = core->take_events(); !events.empty() && helpers.engine)
    self->send(helpers.engine, atom::events_v,
               std::make_shared<const cache_events>(cache_events{std::move(events)}));
  if (!notes.empty())
    send_notes();
}

template <class Event>
void tree_state::note(const Event& event) {
  if (helpers.recorder)
    notes.push_back({event, core->digest()});
}

void tree_state::send_notes() {
  auto batch = std::make_shared<const op_log_batch>(op_log_batch{std::exchange(notes, {})});
  if (unrecorded == limits::unrecorded_batches) {
    spdlog::error("the op log ends here: the disk is too slow");
    helpers.recorder = nullptr;
    return;
  }
  ++unrecorded;
  auto on_ok = [this](atom::ok) { --unrecorded; };
  // The recorder has said why.
  auto on_error = [this](const caf::error&) { helpers.recorder = nullptr; };
  self->request(helpers.recorder, caf::infinite, atom::record_v, op_log_batch_ptr{std::move(batch)})
    .then(on_ok, on_error);
}

std::vector<ready_request> tree_state::step_core(const step_facts& facts,
                                                 const std::vector<page_list>& lists) {
  auto ready = core->step(facts, lists);
  if (helpers.recorder)
    note(applied_step{facts, lists});
  return ready;
}

bool tree_state::has_news() const {
  if (writes.done() > known.writes_done || loads.done() > known.loads_done
      || backups.done() > known.backups_done || copy_failed)
    return true;
  for (const auto id : core->ending())
    if (arrived.count(id) > 0)
      return true;
  return false;
}

void tree_state::offer() {
  auto mine = step_offer{writes.done(),
                         loads.done(),
                         backups.done(),
                         clock->now().time_since_epoch().count(),
                         core->digest(),
                         copy_failed,
                         {}};
  open->arrived.clear();
  for (const auto id : core->ending()) {
    const auto i = arrived.find(id);
    const auto here = i != arrived.end();
    mine.fetched.push_back(here ? static_cast<int64_t>(i->second->size()) : -1);
    open->arrived.push_back(here ? i->second : page_list{});
  }
  open->offered = true;
  ++counters.reductions;
  self->delayed_send(self, step_timeout, atom::tick_v, ranks_timer, step_number);
  auto on_minimum = [this](const reduced& minimum) { on_reduced(minimum.values); };
  auto on_error = [this](const caf::error& err) { on_reduced(tl::unexpected{from_caf(err)}); };
  self
    ->request(helpers.ranks, caf::infinite, atom::reduce_v,
              reduction{reduction_channel::step, encode_step(mine)})
    .then(on_minimum, on_error);
}

void tree_state::on_reduced(result<std::vector<int64_t>> minimum) {
  HICACHE_CHECK(open && open->offered);
  if (open->promise)
    conclude(std::move(minimum));
  else
    open->late = std::move(minimum);
}

void tree_state::conclude(result<std::vector<int64_t>> minimum) {
  auto promise = *std::exchange(open->promise, std::nullopt);
  auto outcome = minimum.and_then([this](const auto& values) { return settle(values); });
  if (!outcome && outcome.error().code == ec::rank_unresponsive) {
    // The communicator is broken for good; a repeated step fails again.
    ++counters.errors;
    open->late = std::move(minimum);
  } else {
    open.reset();
  }
  if (outcome)
    promise.deliver(std::move(*outcome));
  else
    promise.deliver(to_caf(outcome.error()));
  for (auto& batch : std::exchange(waiting, {})) {
    if (open)
      batch.promise.deliver(to_caf({ec::rank_unresponsive, "the step before did not finish"}));
    else
      batch.promise.deliver(apply_now(batch.operations));
  }
}

result<step_result> tree_state::settle(const std::vector<int64_t>& minimum) {
  auto agreed = decode_step(minimum, open->arrived.size());
  if (!agreed)
    return tl::unexpected{distrust(ec::ranks_diverged, agreed.error().detail)};
  if (!agreed->digests_agree)
    return tl::unexpected{distrust(ec::ranks_diverged, "the digests of the ranks' trees differ")};
  if (agreed->failed)
    return tl::unexpected{distrust(ec::copy_failed, "a copy between L1 and L2 failed on a rank")};
  auto outcome = step_result{};
  outcome.reduced = true;
  const auto ending = std::vector<fetch_id>(core->ending().begin(), core->ending().end());
  for (auto i = size_t{0}; i < ending.size(); ++i)
    if (agreed->facts.fetched[i] >= 0)
      arrived.erase(ending[i]);
  outcome.ready = step_core(agreed->facts, open->arrived);
  known = std::move(agreed->facts);
  outcome.in_flight = core->in_flight();
  dispatch();
  return outcome;
}

step_result tree_state::step_alone() {
  auto facts = step_facts{
    writes.done(), loads.done(), backups.done(), {}, clock->now().time_since_epoch().count()};
  auto lists = std::vector<page_list>{};
  for (const auto id : core->ending()) {
    const auto i = arrived.find(id);
    const auto here = i != arrived.end();
    facts.fetched.push_back(here ? static_cast<int64_t>(i->second->size()) : -1);
    lists.push_back(here ? i->second : page_list{});
    if (here)
      arrived.erase(i);
  }
  auto outcome = step_result{};
  outcome.ready = step_core(facts, lists);
  outcome.in_flight = core->in_flight();
  dispatch();
  return outcome;
}

error tree_state::distrust(ec why, const std::string& detail) {
  ++counters.errors;
  if (why == ec::ranks_diverged)
    ++counters.divergences;
  spdlog::critical("no cached page is served any more: {}", detail);
  core->stop_serving();
  note(serving_stopped{});
  dispatch();
  alone = true;
  auto reason = error{why, detail};
  if (helpers.engine)
    self->send(helpers.engine, atom::notice_v, to_caf(reason));
  return reason;
}

// -- actor --------------------------------------------------------------------

tree_actor::behavior_type tree(tree_actor::stateful_pointer<tree_state> self,
                               const tree_options& options, tree_helpers helpers,
                               const clock_source* clock, caf::timespan step_timeout) {
  HICACHE_CHECK(helpers.controller && helpers.ranks && clock != nullptr);
  HICACHE_CHECK(!options.storage_attached || (helpers.prefetcher && helpers.backup));
  auto& state = self->state;
  state.helpers = std::move(helpers);
  state.clock = clock;
  state.step_timeout = step_timeout;
  state.core = make_prefix_cache(options);
  state.dispatch();
  return {
    [self](atom::apply, const tree_operations& operations) {
      return self->state.apply(operations);
    },
    [self](atom::step, caf::timespan wait) { return self->state.step(wait); },
    [self](atom::done, const operation_done& fact) { self->state.done(fact); },
    [self](atom::fetched, const fetched_pages& fact) { self->state.fetched(fact); },
    [self](atom::tick, uint8_t timer, uint64_t number) { self->state.tick(timer, number); },
    [self](atom::corrupt) {
#ifdef HICACHE_TEST_HOOKS
      self->state.core->corrupt_for_test();
#else
      static_cast<void>(self);
#endif
    },
    [self](atom::counters) {
      auto counters = self->state.counters;
      const auto stats = self->state.core->stats();
      counters.evicted_l1 = stats.evicted_device;
      counters.evicted_l2 = stats.evicted_host;
      return counters;
    },
  };
}

} // namespace hicache
