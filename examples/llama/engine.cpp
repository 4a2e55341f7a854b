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

/// The same, if the KV of a prompt is on its way from another instance: nothing of that ends a
/// step.
constexpr auto handoff_wait = caf::timespan{std::chrono::milliseconds{1}};

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

void engine_state::hear(const handoff_event& event) {
  incoming.handoffs.push_back(event);
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
  schedule->take(input);
  for (const auto id : input.aborted)
    if (parts.sender != nullptr)
      close_handoff(id); // The receiver has what it wanted, or is gone.
  if (parts.receiver != nullptr)
    receive_handoffs(input.handoffs);
  apply(schedule->open(), [this](const tree_answers& answers) {
    schedule->opened(answers);
    make_room();
  });
}

void engine_state::make_room() {
  apply(schedule->make_room(), [this](const tree_answers& answers) {
    schedule->made_room(answers);
    open_handoffs();
    compute();
  });
}

void engine_state::compute() {
  if (const auto slices = schedule->batch(); !slices.empty()) {
    in_pass = schedule->handed_in_pass();
    const auto result = parts.model->compute(slices, in_pass.empty() ? nullptr : this);
    if (!result)
      return fail(to_caf(result.error()));
    schedule->computed(*result, parts.model->config().vocabulary);
  }
  apply(schedule->insert(), [this](const tree_answers& answers) {
    schedule->inserted(answers);
    step();
  });
}

void engine_state::step() {
  const auto pause = schedule->receiving().empty() ? step_wait : handoff_wait;
  const auto wait = schedule->can_compute() ? caf::timespan{0} : pause;
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
  if (schedule->has_ended())
    serving.deliver(turns);
  else
    plan_turn();
}

// -- handoffs -----------------------------------------------------------------------

void engine_state::open_handoffs() {
  for (const auto& each : schedule->unopened()) {
    auto offer
      = parts.sender->open({each.id, each.receiver_pages, each.prompt_tokens, each.receiver_ranks});
    if (!offer && offer.error().code == ec::limit_reached)
      continue; // Until another handoff ends.
    if (!offer) {
      schedule->fail(each.id, offer.error().detail);
      continue;
    }
    schedule->open_handoff(each.id);
    parts.handoff_bytes->Set(static_cast<double>(parts.sender->used_bytes()));
    tell_receiver(each.id, std::move(*offer));
  }
}

void engine_state::close_handoff(completion_id id) {
  parts.sender->close(id);
  parts.handoff_bytes->Set(static_cast<double>(parts.sender->used_bytes()));
}

void engine_state::tell_receiver(completion_id id, std::string message) {
  auto output = completion_output{};
  output.id = id;
  output.message = std::move(message);
  if (const auto sink = sinks.find(id); sink != sinks.end())
    sink->second(output);
}

void engine_state::stored(uint32_t layer) {
  for (const auto& each : in_pass)
    parts.sender->stage(each.id, layer, each.pages, each.computed_tokens);
}

void engine_state::stored_everywhere(uint32_t layer) {
  for (const auto& each : in_pass)
    tell_receiver(each.id, parts.sender->announce(each.id, layer));
}

void engine_state::receive_handoffs(const std::vector<handoff_event>& events) {
  is_ahead = false;
  for (const auto id : schedule->take_dropped())
    parts.receiver->close(id);
  const auto waiting = schedule->receiving();
  // Per handoff: ranks where it failed, and pages that are missing on any.
  auto facts = std::vector<float>{};
  for (const auto& each : waiting) {
    const auto first_page = each.computed_tokens / parts.schedule.page_size;
    parts.receiver->open(each.id, first_page, each.prompt_tokens, each.pages);
    for (const auto& event : events)
      if (event.id == each.id && event.attempt == each.attempt)
        parts.receiver->hear(each.id, event.message);
    const auto state = parts.receiver->state(each.id);
    facts.push_back(state.failure.code == ec::none ? 0.0F : 1.0F);
    facts.push_back(static_cast<float>(state.missing));
    is_ahead = is_ahead || (state.first_token && state.missing == 0);
    if (state.failure.code != ec::none)
      spdlog::warn("completion {}: no KV from its prefill instance: {}", each.id,
                   state.failure.detail);
  }
  if (!waiting.empty())
    parts.ranks->sum(facts);
  for (auto i = size_t{0}; i < waiting.size(); ++i) {
    const auto id = waiting[i].id;
    const auto first = parts.receiver->state(id).first_token;
    const auto has_failed
      = facts[2 * i] > 0 || first.value_or(0) >= parts.model->config().vocabulary;
    if (!has_failed && (facts[2 * i + 1] > 0 || !first))
      continue;
    parts.receiver->close(id);
    if (has_failed)
      schedule->miss_handoff(id);
    else
      schedule->receive(id, *first);
  }
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
  const auto can_wait = schedule->awaits_handoffs() && !is_ahead;
  if (parts.ranks->rank() > 0 || !can_wait || !incoming.is_empty() || is_in_flight)
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
    [self](atom::handoff, const handoff_event& event) { self->state.hear(event); },
    [self](atom::stop) { self->state.stop(); },
    [self](atom::turn) { self->state.begin_turn(); },
  };
}

} // namespace llama
