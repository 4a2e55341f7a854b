#include "actors/tree.hpp"

#include "base/check.hpp"

#include <spdlog/spdlog.h>

#include <cmath>
#include <utility>

namespace hicache {

namespace {

constexpr uint8_t notify_timer = 0;
constexpr uint8_t ranks_timer = 1;

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<tree_answers> tree_state::apply(const tree_operations& operations) {
  const auto turn = steps->admit(operations.list.empty());
  if (!turn)
    return to_caf(turn.error());
  if (*turn == step_machine::turn::now)
    return apply_now(operations);
  return waiting.emplace_back(deferred{operations, self->make_response_promise<tree_answers>()})
    .promise;
}

caf::result<step_result> tree_state::step(caf::timespan wait) {
  if (steps->is_awaited())
    return to_caf({ec::invalid_argument, "a step is open already"});
  auto promise = self->make_response_promise<step_result>();
  asking = promise;
  handle(step_machine::asked{wait});
  return promise;
}

void tree_state::done(const operation_done& fact) {
  facts.add(fact);
  look_for_news();
}

void tree_state::fetched(const fetched_pages& fact) {
  facts.add(fact);
  look_for_news();
}

uint64_t tree_state::freeze() {
  handle(step_machine::frozen{});
  return steps->steps_begun();
}

caf::result<atom::ok> tree_state::commit(const storage_change& change, uint64_t before) {
  auto promise = self->make_response_promise<atom::ok>();
  changes.push_back({change, promise});
  handle(step_machine::committed{before});
  return promise;
}

rank_counters tree_state::count() const {
  auto all = counters;
  const auto stats = core->stats();
  all.steps = steps->steps_asked();
  all.evicted_l1 = stats.evicted_l1;
  all.evicted_l2 = stats.evicted_l2;
  all.free_l1 = stats.l1_free;
  all.free_l2 = stats.l2_free;
  all.quarantined_l2 = stats.quarantined;
  all.token_compute_ns = static_cast<uint64_t>(std::llround(prefill.token_ns()));
  return all;
}

// -- actions of the step machine ----------------------------------------------

void tree_state::handle(const step_machine::event& what) {
  const auto now = self->clock().now().time_since_epoch();
  for (const auto& action : steps->handle(now, what))
    std::visit([this](const auto& each) { act(each); }, action);
}

void tree_state::act(const step_machine::begin& what) {
  for (auto i = size_t{0}; i < what.changes; ++i) {
    auto next = std::move(changes.front());
    changes.pop_front();
    core->change_storage(next.change);
    outbox->note(next.change, *core);
    send();
    next.promise.deliver(atom::ok_v);
  }
  auto found = step_machine::begun{.in_flight = core->in_flight(),
                                   .has_pins = core->has_pins(),
                                   .has_quarantine = core->stats().quarantined > 0,
                                   .has_news = facts.has_news(core->backing_up())};
  if (const auto stop = core->next_deadline_ns())
    found.next_deadline = std::chrono::nanoseconds{*stop - now_ns()};
  handle(found);
}

void tree_state::act(const step_machine::step_locally&) {
  // The cache may still evict in the background and refill the staging pool, identically on all
  // ranks.
  step_core(facts.unchanged(core->backing_up().size()));
  std::exchange(asking, {}).deliver(step_result{});
}

void tree_state::act(const step_machine::step_alone&) {
  auto outcome = step_core(facts.mine(open(), now_ns()));
  std::exchange(asking, {}).deliver(std::move(outcome));
}

void tree_state::act(const step_machine::set_wait_timer& what) {
  self->delayed_send(self, what.after, atom::tick_v, notify_timer, what.number);
}

void tree_state::act(const step_machine::set_ranks_timer& what) {
  self->delayed_send(self, what.after, atom::tick_v, ranks_timer, uint64_t{0});
}

void tree_state::act(const step_machine::offer&) {
  ++counters.reductions;
  auto on_minimum
    = [this](const reduced& minimum) { handle(step_machine::reduced{minimum.values}); };
  auto on_error = [this](const caf::error& err) {
    handle(step_machine::reduced{tl::unexpected{from_caf(err)}});
  };
  const auto offer = facts.offer(open(), now_ns(), core->digest());
  self
    ->request(outbox->helpers().ranks, caf::infinite, atom::reduce_v,
              reduction{reduction_channel::step, encode_step(offer)})
    .then(on_minimum, on_error);
}

void tree_state::act(const step_machine::settle& what) {
  auto outcome = settle(what.minimum);
  handle(
    step_machine::settled{std::move(outcome), facts.now_ns(), facts.has_more(core->backing_up())});
}

void tree_state::act(const step_machine::answer& what) {
  std::exchange(asking, {}).deliver(what.outcome);
}

void tree_state::act(const step_machine::fail_step& what) {
  counters.errors += what.why.code == ec::rank_unresponsive ? 1 : 0;
  std::exchange(asking, {}).deliver(to_caf(what.why));
}

void tree_state::act(const step_machine::report_missing&) {
  ++counters.errors;
  auto answer = [promise = std::exchange(asking, {})](const std::string& who) mutable {
    promise.deliver(to_caf({ec::rank_unresponsive, "the step was not finished in time: " + who}));
  };
  self
    ->request(outbox->helpers().ranks, caf::infinite, atom::missing_v,
              static_cast<uint8_t>(reduction_channel::step))
    .then([answer](const std::string& who) mutable { answer(who); },
          [answer](const caf::error& err) mutable { answer(to_string(from_caf(err))); });
}

void tree_state::act(const step_machine::tell_engine&) {
  if (outbox->helpers().engine)
    self->send(outbox->helpers().engine, atom::notify_v);
}

void tree_state::act(const step_machine::replay&) {
  for (auto& batch : std::exchange(waiting, {}))
    if (const auto turn = steps->admit(batch.operations.list.empty()))
      batch.promise.deliver(apply_now(batch.operations));
    else
      batch.promise.deliver(to_caf(turn.error()));
}

// -- internal steps -----------------------------------------------------------

void tree_state::look_for_news() {
  if (facts.has_news(core->backing_up()))
    handle(step_machine::news{});
}

tree_answers tree_state::apply_now(const tree_operations& operations) {
  auto answers = tree_answers{};
  answers.list.reserve(operations.list.size());
  for (const auto& operation : operations.list)
    answers.list.push_back(apply_one(operation));
  send();
  return answers;
}

tree_answer tree_state::apply_one(const tree_operation& operation) {
  // Before the operation, which may free pages of the request.
  auto fenced = result<void>{};
  if (const auto* insert = std::get_if<insert_request>(&operation))
    fenced = fence(insert->request, insert->after);
  else if (const auto* release = std::get_if<release_request>(&operation))
    fenced = fence(release->request, release->after);
  if (!fenced)
    return tl::unexpected{std::move(fenced.error())};
  const auto is_clear = std::holds_alternative<clear_request>(operation);
  if (is_clear && steps->is_alone())
    return fail(ec::ranks_diverged, "the ranks' trees differ; only a restart ends that");
  auto answer = hicache::apply(*core, operation);
  outbox->note(operation, *core);
  if (is_clear && answer)
    health.reset();
  if (answer && outbox->helpers().prefetcher)
    watch_prefill(operation);
  return answer;
}

void tree_state::watch_prefill(const tree_operation& operation) {
  if (const auto* allocated = std::get_if<allocate_request>(&operation))
    prefill.allocated(allocated->request, core->extent(allocated->request).l1_tokens,
                      allocated->tokens, clock->now());
  else if (const auto* inserted = std::get_if<insert_request>(&operation))
    prefill.inserted(inserted->request, inserted->tokens->size(),
                     core->extent(inserted->request).prompt_tokens, clock->now());
  else if (const auto* released = std::get_if<release_request>(&operation))
    prefill.released(released->request);
}

result<void> tree_state::fence(request_id request, void* event) {
  if (event == nullptr)
    return {};
  if (!outbox->helpers().fences)
    return fail(ec::unsupported, "this device has no events; expected none in `after`");
  const auto pages = core->pages_of(request);
  if (!pages || pages->empty())
    return {};
  if (auto added = outbox->helpers().fences->add(*pages, event); !added) {
    // The operation proceeds, since the other ranks do not know of the failure; but copies are
    // unsafe from now on.
    spdlog::critical("copies cannot wait for the engine: {}", to_string(added.error()));
    facts.lose_device();
  }
  return {};
}

step_openings tree_state::open() const {
  return {core->backing_up(), core->fetching(), core->fetching_later()};
}

result<step_result> tree_state::settle(const std::vector<int64_t>& minimum) {
  const auto agreed = decode_step(minimum, open());
  if (!agreed.digests_agree) {
    ++counters.divergences;
    return tl::unexpected{
      stop_serving(ec::ranks_diverged, "the digests of the ranks' trees differ")};
  }
  auto outcome = step_core(agreed.facts);
  outcome.reduced = true;
  const auto copies = facts.agree(agreed);
  if (const auto failed = copy_health::failures(agreed.facts); failed > 0) {
    counters.errors += failed;
    spdlog::error("a copy between L1 and L2 failed on a rank; its pages are lost");
  }
  if (const auto* why = health.note(agreed, copies))
    return tl::unexpected{stop_serving(ec::copy_failed, why)};
  return outcome;
}

step_result tree_state::step_core(step_facts agreed) {
  auto outcome = step_result{};
  outcome.was_in_flight = core->in_flight();
  const auto lists = facts.take(open(), agreed);
  outcome.ready = core->step(agreed, lists);
  if (outbox->helpers().recorder)
    outbox->note(applied_step{std::move(agreed), lists}, *core);
  outcome.failed.assign(core->failed().begin(), core->failed().end());
  outcome.in_flight = core->in_flight();
  send();
  return outcome;
}

error tree_state::stop_serving(ec why, const std::string& detail) {
  ++counters.errors;
  spdlog::critical("no cached page is served any more: {}", detail);
  core->stop_serving();
  outbox->note(serving_stopped{}, *core);
  send();
  auto reason = error{why, detail};
  if (outbox->helpers().engine)
    self->send(outbox->helpers().engine, atom::notice_v, to_caf(reason));
  return reason;
}

// -- actor --------------------------------------------------------------------

tree_core_actor::behavior_type tree(tree_core_actor::stateful_pointer<tree_state> self,
                                    const tree_options& options, tree_helpers helpers,
                                    const clock_source* clock, caf::timespan step_timeout) {
  HICACHE_CHECK(helpers.controller && helpers.ranks && clock != nullptr);
  HICACHE_CHECK(!options.storage_attached || (helpers.prefetcher && helpers.backup));
  auto& state = self->state;
  state.prefill = prefill_watch{helpers.prefill_speed};
  state.outbox.emplace(self, std::move(helpers));
  state.clock = clock;
  state.steps.emplace(step_timeout);
  state.page_size = options.page_size;
  state.core = std::make_unique<prefix_cache>(options);
  state.send();
  return {
    [self](atom::apply, const tree_operations& operations) {
      return self->state.apply(operations);
    },
    [self](atom::step, caf::timespan wait) { return self->state.step(wait); },
    [self](atom::done, const operation_done& fact) { self->state.done(fact); },
    [self](atom::fetched, const fetched_pages& fact) { self->state.fetched(fact); },
    [self](atom::freeze) { return self->state.freeze(); },
    [self](atom::commit, const storage_change& change, uint64_t before) {
      return self->state.commit(change, before);
    },
    [self](atom::abort) { self->state.handle(step_machine::aborted{}); },
    [self](atom::tick, uint8_t timer, uint64_t number) {
      if (timer == notify_timer)
        self->state.handle(step_machine::wait_over{number});
      else
        self->state.handle(step_machine::ranks_timer{});
    },
    [self](atom::counters) { return self->state.count(); },
  };
}

} // namespace hicache
