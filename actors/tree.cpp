#include "actors/tree.hpp"

#include "actors/cache_events.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
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
  if (held || (open && open->promise))
    return to_caf({ec::invalid_argument, "a step is open already"});
  ++counters.steps;
  ++step_number;
  has_told_news = false;
  auto promise = self->make_response_promise<step_result>();
  if (is_frozen && !open)
    held = held_step{wait, promise};
  else
    begin_step(wait, promise);
  return promise;
}

caf::result<uint64_t> tree_state::freeze() {
  is_frozen = true;
  return steps_begun;
}

caf::result<atom::ok> tree_state::commit(const storage_change& change, uint64_t before) {
  HICACHE_CHECK(is_frozen && before > steps_begun);
  auto promise = self->make_response_promise<atom::ok>();
  changes.push_back({change, before, promise});
  unfreeze();
  on_news();
  return promise;
}

void tree_state::unfreeze() {
  is_frozen = false;
  if (auto waited = std::exchange(held, std::nullopt))
    begin_step(waited->wait, waited->promise);
}

void tree_state::done(const operation_done& fact) {
  switch (fact.kind) {
    case operation_kind::write:
      writes.complete(fact.id);
      if (!fact.ok)
        failed_writes.insert(fact.id);
      break;
    case operation_kind::load:
      loads.complete(fact.id);
      if (!fact.ok)
        failed_loads.insert(fact.id);
      break;
    case operation_kind::backup:
      stored[fact.id] = fact.is_in_quarantine ? backup_given_up : static_cast<int64_t>(fact.stored);
      break;
  }
  device_lost |= fact.device_lost;
  if (has_news())
    on_news();
}

void tree_state::fetched(const fetched_pages& fact) {
  arrived[fact.id] = fact;
  if (has_news())
    on_news();
}

void tree_state::tick(uint8_t timer, uint64_t number) {
  if (timer == news_timer) {
    if (open && open->promise && number == step_number && !open->offered)
      offer();
    return;
  }
  is_ranks_timer_set = false;
  if (!open || !open->promise || !open->offered)
    return; // Nobody is waited for.
  if (const auto left = deadline - self->clock().now(); left.count() > 0) {
    set_ranks_timer(left); // It was set for an earlier step.
    return;
  }
  ++counters.errors;
  auto fail_step = [promise
                    = *std::exchange(open->promise, std::nullopt)](const std::string& who) mutable {
    promise.deliver(to_caf({ec::rank_unresponsive, "the step was not finished in time: " + who}));
  };
  self
    ->request(helpers.ranks, caf::infinite, atom::missing_v,
              static_cast<uint8_t>(reduction_channel::step))
    .then([fail_step](const std::string& who) mutable { fail_step(who); },
          [fail_step](const caf::error& err) mutable { fail_step(to_string(from_caf(err))); });
  for (auto& batch : std::exchange(waiting, {}))
    batch.promise.deliver(to_caf({ec::rank_unresponsive, "the step before did not finish"}));
}

// -- internal steps -----------------------------------------------------------

void tree_state::begin_step(caf::timespan wait, caf::typed_response_promise<step_result> promise) {
  if (!open) {
    ++steps_begun;
    pace.note_step();
    apply_changes();
  }
  if (alone) {
    promise.deliver(step_alone());
    return;
  }
  // Each rank has made as many steps, so all agree on pages in quarantine in the same ones.
  const auto looks_at_quarantine
    = steps_begun % limits::quarantine_steps == 0 && core->stats().quarantined > 0;
  if (!open && !core->in_flight() && !pace.is_due(core->has_pins()) && !looks_at_quarantine) {
    // Nothing to agree on; the tree may still make room and top up the prefetcher's reserve, on
    // every rank alike.
    step_core({.writes_done = known.writes_done,
               .loads_done = known.loads_done,
               .backups = std::vector<int64_t>(core->backing_up().size(), -1),
               .now_ns = known.now_ns},
              {});
    dispatch();
    promise.deliver(step_result{});
    return;
  }
  if (!open)
    open.emplace();
  open->promise = promise;
  if (open->late)
    conclude(*std::exchange(open->late, std::nullopt));
  else if (open->offered)
    expect_ranks();
  else if (wait.count() == 0 || has_news() || !core->in_flight())
    offer();
  else
    self->delayed_send(self, time_to_news(wait), atom::tick_v, news_timer, step_number);
}

void tree_state::apply_changes() {
  while (!changes.empty() && changes.front().before <= steps_begun) {
    auto next = std::move(changes.front());
    changes.pop_front();
    core->change_storage(next.change);
    pace.note_change();
    note(next.change);
    dispatch();
    next.promise.deliver(atom::ok_v);
  }
}

caf::timespan tree_state::time_to_news(caf::timespan wait) const {
  const auto stop = core->next_stop_ns();
  if (!stop)
    return wait;
  const auto left = caf::timespan{*stop - clock->now().time_since_epoch().count()};
  return std::clamp(left, caf::timespan{0}, wait);
}

void tree_state::on_news() {
  if (open && open->promise && !open->offered)
    offer();
  else if (!open && helpers.engine && !std::exchange(has_told_news, true))
    self->send(helpers.engine, atom::news_v);
}

step_facts tree_state::facts_here() const {
  auto facts = step_facts{.writes_done = writes.done(),
                          .loads_done = loads.done(),
                          .now_ns = clock->now().time_since_epoch().count()};
  for (const auto id : core->backing_up()) {
    const auto i = stored.find(id);
    facts.backups.push_back(i == stored.end() ? -1 : i->second);
  }
  for (const auto id : core->fetching()) {
    auto& fetch = facts.fetches.emplace_back();
    if (const auto i = arrived.find(id); i != arrived.end())
      fetch = {static_cast<int64_t>(i->second.host_pages->size()),
               static_cast<int64_t>(i->second.found), i->second.why};
  }
  const auto later = core->fetching_later();
  const auto is_here = [this](fetch_id id) { return arrived.contains(id); };
  if (const auto first = std::ranges::find_if(later, is_here); first != later.end())
    facts.next_fetch = first - later.begin();
  return facts;
}

std::vector<page_list> tree_state::pages_here() const {
  auto lists = std::vector<page_list>{};
  for (const auto id : core->fetching()) {
    const auto i = arrived.find(id);
    lists.push_back(i == arrived.end() ? page_list{} : i->second.host_pages);
  }
  return lists;
}

void tree_state::forget_ended(const step_facts& facts) {
  for (auto i = size_t{0}; i < facts.backups.size(); ++i)
    if (const auto id = core->backing_up()[i]; facts.backups[i] >= 0) {
      stored.erase(id);
      in_quarantine.erase(id);
    } else if (facts.backups[i] == backup_given_up) {
      in_quarantine.insert(id);
    }
  for (auto i = size_t{0}; i < facts.fetches.size(); ++i)
    if (facts.fetches[i].arrived >= 0)
      arrived.erase(core->fetching()[i]);
}

tree_answers tree_state::apply_now(const tree_operations& operations) {
  auto answers = tree_answers{};
  answers.list.reserve(operations.list.size());
  if (!operations.list.empty())
    pace.note_change();
  for (const auto& operation : operations.list)
    answers.list.push_back(apply_one(operation));
  dispatch();
  return answers;
}

tree_answer tree_state::apply_one(const tree_operation& operation) {
  // Before the operation: it may free pages of the request.
  auto fenced = result<void>{};
  if (const auto* insert = std::get_if<insert_request>(&operation))
    fenced = fence(insert->request, insert->after);
  else if (const auto* release = std::get_if<release_request>(&operation))
    fenced = fence(release->request, release->after);
  if (!fenced)
    return tl::unexpected{std::move(fenced.error())};
  const auto is_clear = std::holds_alternative<clear_request>(operation);
  if (is_clear && alone)
    return fail(ec::ranks_diverged, "the ranks' trees differ; only a restart ends that");
  auto answer = hicache::apply(*core, operation);
  note(operation);
  if (is_clear && answer) {
    is_stopped = false;
    failures_in_a_row = 0;
  }
  return answer;
}

result<void> tree_state::fence(request_id request, void* event) {
  if (event == nullptr)
    return {};
  if (!helpers.fences)
    return fail(ec::unsupported, "this device has no events; expected none in `after`");
  const auto pages = core->pages_of(request);
  if (!pages || pages->empty())
    return {};
  if (auto added = helpers.fences->add(*pages, event); !added) {
    // The other ranks cannot know, so the operation goes on here; but no copy is safe any more.
    spdlog::critical("copies cannot wait for the engine: {}", to_string(added.error()));
    device_lost = true;
  }
  return {};
}

void tree_state::dispatch() {
  auto copies = copy_batch{};
  for (auto& effect : core->take_effects())
    std::visit(
      overload{
        [&](write_command& x) { copies.writes.push_back(std::move(x)); },
        [&](load_command& x) { copies.loads.push_back(std::move(x)); },
        [&](backup_command& x) { self->send(helpers.backup, atom::backup_v, std::move(x)); },
        [&](drop_command& x) { self->send(helpers.backup, atom::drop_v, x); },
        [&](fetch_command& x) { self->send(helpers.prefetcher, atom::fetch_v, std::move(x)); },
        [&](terminate_command& x) { self->send(helpers.prefetcher, atom::terminate_v, x); },
        [&](refill_command& x) { self->send(helpers.prefetcher, atom::refill_v, std::move(x)); },
        [&](reclaim_command& x) { self->send(helpers.prefetcher, atom::refill_v, x); },
      },
      effect);
  if (!copies.writes.empty() || !copies.loads.empty())
    self->send(helpers.controller, atom::copy_v, std::move(copies));
  if (auto events = core->take_events(); !events.empty())
    send_events(std::move(events));
  if (!notes.empty())
    send_notes();
}

void tree_state::send_events(std::vector<cache_event> list) {
  const auto events
    = std::make_shared<const cache_events>(cache_events{std::move(list), event_batches++});
  if (helpers.engine)
    self->send(helpers.engine, atom::events_v, cache_events_ptr{events});
  if (!helpers.publisher || unpublished == limits::unpublished_batches)
    return;
  ++unpublished;
  self->request(helpers.publisher, caf::infinite, atom::events_v, cache_events_ptr{events})
    .then([this](atom::ok) { --unpublished; },
          [this](const caf::error&) { helpers.publisher = nullptr; }); // It ends only with us.
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
  // A backup that all ranks know to be given up is news again when it ends.
  const auto is_news = [this](operation_id id) {
    const auto i = stored.find(id);
    return i != stored.end() && (i->second != backup_given_up || !in_quarantine.contains(id));
  };
  return writes.done() > known.writes_done || loads.done() > known.loads_done || device_lost
         || !arrived.empty() || std::ranges::any_of(core->backing_up(), is_news);
}

void tree_state::offer() {
  open->mine = facts_here();
  open->arrived = pages_here();
  open->offered = true;
  ++counters.reductions;
  expect_ranks();
  auto on_minimum = [this](const reduced& minimum) { on_reduced(minimum.values); };
  auto on_error = [this](const caf::error& err) { on_reduced(tl::unexpected{from_caf(err)}); };
  const auto oldest = [](const auto& ids) { return ids.empty() ? operation_id{0} : *ids.begin(); };
  const auto offer = step_offer{open->mine, core->digest(), oldest(failed_writes),
                                oldest(failed_loads), device_lost};
  self
    ->request(helpers.ranks, caf::infinite, atom::reduce_v,
              reduction{reduction_channel::step, encode_step(offer)})
    .then(on_minimum, on_error);
}

void tree_state::expect_ranks() {
  deadline = self->clock().now() + step_timeout;
  if (!is_ranks_timer_set)
    set_ranks_timer(step_timeout);
}

void tree_state::set_ranks_timer(caf::timespan time) {
  is_ranks_timer_set = true;
  self->delayed_send(self, time, atom::tick_v, ranks_timer, step_number);
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
  // What ended beyond the prefetches of this step, or behind a copy that failed, is news for the
  // next one.
  const auto is_cut_short = (known.write_failed || known.load_failed) && has_news();
  if (!open && (known.next_fetch != step_facts::no_fetch || is_cut_short))
    on_news();
  for (auto& batch : std::exchange(waiting, {})) {
    if (open)
      batch.promise.deliver(to_caf({ec::rank_unresponsive, "the step before did not finish"}));
    else
      batch.promise.deliver(apply_now(batch.operations));
  }
}

result<step_result> tree_state::settle(const std::vector<int64_t>& minimum) {
  auto agreed = decode_step(minimum, open->mine);
  if (!agreed.digests_agree)
    return tl::unexpected{distrust("the digests of the ranks' trees differ")};
  auto outcome = step_result{};
  outcome.reduced = true;
  outcome.was_in_flight = core->in_flight();
  forget_ended(agreed.facts);
  outcome.ready = step_core(agreed.facts, open->arrived);
  outcome.failed.assign(core->failed().begin(), core->failed().end());
  const auto copies_before = known.writes_done + known.loads_done;
  known = agreed.facts;
  pace.note_agreement(known.now_ns);
  outcome.in_flight = core->in_flight();
  dispatch();
  if (auto weighed = weigh_failures(agreed, copies_before); !weighed)
    return tl::unexpected{std::move(weighed.error())};
  return outcome;
}

result<void> tree_state::weigh_failures(const step_agreement& agreed, uint64_t copies_before) {
  const auto& facts = agreed.facts;
  const auto failures = (facts.write_failed ? 1U : 0U) + (facts.load_failed ? 1U : 0U);
  const auto copies = facts.writes_done + facts.loads_done - copies_before;
  if (copies > failures)
    failures_in_a_row = 0;
  failures_in_a_row += failures;
  failed_writes.erase(failed_writes.begin(), failed_writes.upper_bound(facts.writes_done));
  failed_loads.erase(failed_loads.begin(), failed_loads.upper_bound(facts.loads_done));
  device_lost &= !agreed.device_lost;
  if (failures > 0) {
    counters.errors += failures;
    spdlog::error("a copy between L1 and L2 failed on a rank; its pages are lost");
  }
  if (is_stopped || (!agreed.device_lost && failures_in_a_row < limits::copy_failures_in_a_row))
    return {};
  is_stopped = true;
  return tl::unexpected{stop_serving(
    ec::copy_failed, agreed.device_lost ? "a rank's device takes no copies any more"
                                        : "one copy between L1 and L2 after the other failed")};
}

step_result tree_state::step_alone() {
  const auto facts = facts_here();
  const auto lists = pages_here();
  auto outcome = step_result{};
  outcome.was_in_flight = core->in_flight();
  forget_ended(facts);
  outcome.ready = step_core(facts, lists);
  outcome.in_flight = core->in_flight();
  dispatch();
  return outcome;
}

error tree_state::distrust(const std::string& detail) {
  ++counters.divergences;
  alone = true;
  return stop_serving(ec::ranks_diverged, detail);
}

error tree_state::stop_serving(ec why, const std::string& detail) {
  ++counters.errors;
  spdlog::critical("no cached page is served any more: {}", detail);
  core->stop_serving();
  note(serving_stopped{});
  dispatch();
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
    [self](atom::freeze) { return self->state.freeze(); },
    [self](atom::commit, const storage_change& change, uint64_t before) {
      return self->state.commit(change, before);
    },
    [self](atom::abort) { self->state.unfreeze(); },
    [self](atom::done, const operation_done& fact) { self->state.done(fact); },
    [self](atom::fetched, const fetched_pages& fact) { self->state.fetched(fact); },
    [self](atom::tick, uint8_t timer, uint64_t number) { self->state.tick(timer, number); },
    [self](atom::counters) {
      auto counters = self->state.counters;
      const auto stats = self->state.core->stats();
      counters.evicted_l1 = stats.evicted_device;
      counters.evicted_l2 = stats.evicted_host;
      counters.free_l1 = stats.device_free;
      counters.free_l2 = stats.host_free;
      counters.quarantined_l2 = stats.quarantined;
      return counters;
    },
  };
}

} // namespace hicache
