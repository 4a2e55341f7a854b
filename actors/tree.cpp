#include "actors/tree.hpp"

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

/// One operation on the core, its result widened to the answer type.
tree_answer perform(hi_radix_tree& core, const tree_operation& operation) {
  const auto widen = [](auto outcome) -> tree_answer {
    if (!outcome)
      return tl::unexpected{std::move(outcome.error())};
    return std::move(*outcome);
  };
  return std::visit(
    overload{
      [&](const match_request& x) { return widen(core.match(x)); },
      [&](const prefetch_request& x) { return widen(core.prefetch(x.request)); },
      [&](const schedule_request& x) { return widen(core.schedule(x.request)); },
      [&](const load_request& x) { return widen(core.load_back(x.request)); },
      [&](const allocate_request& x) { return widen(core.allocate(x.request, x.tokens)); },
      [&](const insert_request& x) { return widen(core.insert(x)); },
      [&](const release_request& x) {
        return widen(core.release(x.request).map([] { return release_result{}; }));
      },
    },
    operation);
}

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
    core->step({known.writes_done, known.loads_done, known.backups_done, {}}, {});
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
  for (const auto& operation : operations.list)
    answers.list.push_back(perform(*core, operation));
  dispatch();
  return answers;
}

void tree_state::dispatch() {
  for (auto& effect : core->take_effects())
    std::visit(
      overload{
        [&](write_command& x) { self->send(helpers.controller, atom::write_v, std::move(x)); },
        [&](load_command& x) { self->send(helpers.controller, atom::load_v, std::move(x)); },
        [&](backup_command& x) { self->send(helpers.backup, atom::backup_v, std::move(x)); },
        [&](fetch_command& x) { self->send(helpers.prefetcher, atom::fetch_v, std::move(x)); },
        [&](terminate_command& x) { self->send(helpers.prefetcher, atom::terminate_v, x); },
        [&](refill_command& x) { self->send(helpers.prefetcher, atom::refill_v, std::move(x)); },
      },
      effect);
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
  outcome.ready = core->step(agreed->facts, open->arrived);
  known = std::move(agreed->facts);
  outcome.in_flight = core->in_flight();
  dispatch();
  return outcome;
}

step_result tree_state::step_alone() {
  auto facts = step_facts{writes.done(), loads.done(), backups.done(), {}};
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
  outcome.ready = core->step(facts, lists);
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
  state.core.emplace(options);
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
