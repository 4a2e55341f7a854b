#include "examples/llama/engine.hpp"

#include "hicache/caf_error.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace llama {

using namespace hicache;

namespace {

/// How long a step waits for L3 if there is nothing to compute.
constexpr auto step_wait = caf::timespan{std::chrono::milliseconds{20}};

/// Idle ranks step so often, so that L3 can be attached and detached.
constexpr auto idle_pause = std::chrono::milliseconds{250};

} // namespace

// -- messages -----------------------------------------------------------------------

caf::result<uint64_t> engine_state::serve(const engine_parts& given) {
  parts = given;
  schedule.emplace(parts.schedule);
  serving = self->make_response_promise<uint64_t>();
  plan_turn();
  return serving;
}

void engine_state::submit(const submission_ptr& wanted) {
  if (is_stopping)
    return wanted->sink({wanted->request.id, {}, finish_reason::aborted, 0, {}});
  sinks.emplace(wanted->request.id, wanted->sink);
  incoming.added.push_back(wanted->request);
  wake();
}

void engine_state::withdraw(completion_id unwanted) {
  incoming.aborted.push_back(unwanted);
  wake();
}

void engine_state::stop() {
  incoming.is_last = is_stopping = true;
  wake();
}

void engine_state::wake() {
  if (std::exchange(is_waiting, false))
    self->send(self, atom::turn_v);
}

// -- a turn -------------------------------------------------------------------------

void engine_state::begin_turn() {
  ++turns;
  auto message = encode(std::exchange(incoming, {}));
  parts.ranks->broadcast(message);
  const auto input = decode(message);
  for (const auto& each : input.added)
    schedule->add(each);
  for (const auto id : input.aborted)
    schedule->abort(id);
  if (input.is_last) {
    is_stopping = true;
    schedule->abort_all();
  }
  apply(schedule->open(), [this](const tree_answers& answers) {
    schedule->opened(answers);
    make_room();
  });
}

void engine_state::make_room() {
  apply(schedule->make_room(), [this](const tree_answers& answers) {
    schedule->made_room(answers);
    compute();
  });
}

void engine_state::compute() {
  const auto slices = schedule->batch();
  if (slices.empty())
    return step();
  const auto result = parts.model->compute(slices);
  schedule->computed(result, parts.model->config().vocabulary);
  apply(schedule->insert(), [this](const tree_answers& answers) {
    schedule->inserted(answers);
    step();
  });
}

void engine_state::step() {
  const auto wait = schedule->can_compute() ? caf::timespan{0} : step_wait;
  self->request(parts.tree, caf::infinite, hicache::atom::step_v, wait)
    .then([this](const step_result& facts) { end_turn(facts); },
          [this](const caf::error& err) {
            const auto code = from_caf(err).code;
            if (code != ec::ranks_diverged && code != ec::copy_failed)
              return fail(err);
            // The cache serves no hits any more: everything is computed again.
            schedule->restart_all();
            end_turn({});
          });
}

void engine_state::end_turn(const step_result& facts) {
  schedule->stepped(facts);
  is_in_flight = facts.in_flight;
  give_out();
  if (is_stopping && schedule->is_idle())
    serving.deliver(turns);
  else
    plan_turn();
}

// -- internal steps -----------------------------------------------------------------

void engine_state::apply(scheduler::operations list,
                         std::function<void(const tree_answers&)> next) {
  if (list.empty())
    return next({});
  self->request(parts.tree, caf::infinite, hicache::atom::apply_v, tree_operations{std::move(list)})
    .then(std::move(next), [this](const caf::error& err) { fail(err); });
}

void engine_state::plan_turn() {
  if (parts.ranks->rank() > 0 || !schedule->is_idle() || !incoming.is_empty() || is_in_flight)
    return self->send(self, atom::turn_v);
  is_waiting = true;
  // A wake-up that comes late finds nothing to wake.
  self->delayed_send(self, idle_pause, hicache::atom::notify_v);
}

void engine_state::give_out() {
  for (const auto& output : schedule->take_outputs()) {
    const auto sink = sinks.find(output.id);
    if (sink == sinks.end())
      continue;
    sink->second(output);
    if (output.finish != finish_reason::none)
      sinks.erase(sink);
  }
}

void engine_state::fail(const caf::error& why) {
  for (const auto& [id, sink] : std::exchange(sinks, {}))
    sink({id, {}, finish_reason::failed, 0, to_string(from_caf(why))});
  is_stopping = true;
  serving.deliver(why);
}

// -- actor --------------------------------------------------------------------------

llama_engine::behavior_type engine(llama_engine::stateful_pointer<engine_state> self) {
  return {
    [](hicache::atom::notice, const caf::error& what) {
      spdlog::warn("hicache: {}", to_string(from_caf(what)));
    },
    [self](hicache::atom::notify) { self->state.wake(); },
    [](hicache::atom::events, const cache_events_ptr&) {},
    [self](atom::serve, const engine_parts& given) { return self->state.serve(given); },
    [self](atom::submit, const submission_ptr& wanted) { self->state.submit(wanted); },
    [self](atom::withdraw, completion_id unwanted) { self->state.withdraw(unwanted); },
    [self](atom::stop) { self->state.stop(); },
    [self](atom::turn) { self->state.begin_turn(); },
  };
}

} // namespace llama
