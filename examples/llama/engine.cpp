#include "examples/llama/engine.hpp"

#include "base/try.hpp"
#include "hicache/caf_error.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <utility>
#include <vector>

namespace llama {

using namespace hicache;
using nlohmann::json;

namespace {

/// How long a step waits for L3 if there is nothing to compute.
constexpr auto step_wait = caf::timespan{std::chrono::milliseconds{20}};

/// The same, if the KV of a prompt is on its way from another instance: nothing of that ends a
/// step.
constexpr auto handoff_wait = caf::timespan{std::chrono::milliseconds{1}};

/// Idle ranks step so often, so that L3 can be attached and detached.
constexpr auto idle_pause = std::chrono::milliseconds{250};

class engine final : public pass_watch {
public:
  engine(caf::scoped_actor& self, engine_parts parts, std::function<bool()> must_stop)
    : self_(self), parts_(std::move(parts)), must_stop_(std::move(must_stop)),
      schedule_(parts_.schedule) {}

  result<uint64_t> serve() {
    auto turns = uint64_t{0};
    for (; !schedule_.has_ended(); ++turns)
      if (const auto done = turn(); !done) {
        for (const auto& [id, sink] : sinks_)
          sink({.id = id, .finish = finish_reason::failed, .error = to_string(done.error())});
        return tl::unexpected{done.error()};
      }
    return turns;
  }

private:
  /// What all ranks do together.
  result<void> turn() {
    take_messages();
    auto message = json::to_cbor(std::exchange(incoming_, {}));
    parts_.ranks->broadcast(message);
    const auto input = json::from_cbor(message).get<turn_input>();
    schedule_.take(input);
    for (const auto id : input.aborted)
      if (parts_.sender != nullptr)
        parts_.sender->close(id); // The receiver has what it wanted, or is gone.
    if (parts_.receiver != nullptr)
      receive_handoffs(input.handoffs);
    HICACHE_TRY(apply(schedule_.open()));
    HICACHE_TRY(apply(schedule_.make_room()));
    if (parts_.sender != nullptr)
      open_handoffs();
    HICACHE_TRY(compute());
    HICACHE_TRY(apply(schedule_.insert()));
    HICACHE_TRY(step());
    for (const auto& output : schedule_.take_outputs())
      give_out(output);
    if (parts_.sender != nullptr)
      parts_.handoff_bytes->Set(static_cast<double>(parts_.sender->used_bytes()));
    return {};
  }

  // -- the steps of a turn --------------------------------------------------------

  /// Takes what has come since the last turn. Rank 0 waits if there is nothing to do.
  void take_messages() {
    const auto is_idle
      = parts_.ranks->rank() == 0 && schedule_.awaits_handoffs() && !is_ahead_ && !is_in_flight_;
    auto patience = is_idle && !must_stop_() ? idle_pause : std::chrono::milliseconds{0};
    for (auto is_over = false; !is_over; patience = {})
      self_->receive(
        [](hicache::atom::notice, const caf::error& what) {
          spdlog::warn("hicache: {}", to_string(from_caf(what)));
        },
        [](hicache::atom::notify) {}, [](hicache::atom::events, const cache_events_ptr&) {},
        [this](atom::submit, const completion_request& wanted, const completion_sink& sink) {
          sinks_.emplace(wanted.id, sink);
          incoming_.added.push_back(wanted);
        },
        [this](atom::withdraw, completion_id unwanted) { incoming_.aborted.push_back(unwanted); },
        [this](atom::handoff, const handoff_event& event) { incoming_.handoffs.push_back(event); },
        caf::after(patience) >> [&] { is_over = true; });
    incoming_.is_last = must_stop_();
  }

  /// Computes a pass.
  result<void> compute() {
    const auto slices = schedule_.batch();
    if (slices.empty())
      return {};
    in_pass_ = schedule_.list(&sequence::is_handed_over);
    const auto done = HICACHE_TRY(parts_.model->compute(slices, in_pass_.empty() ? nullptr : this));
    schedule_.computed(done, parts_.model->config().vocabulary);
    return {};
  }

  /// Completions of copies and prefetches become facts.
  result<void> step() {
    const auto pause = schedule_.list(&sequence::is_receiving).empty() ? step_wait : handoff_wait;
    auto facts
      = ask<step_result>(hicache::atom::step_v, schedule_.can_compute() ? caf::timespan{0} : pause);
    if (!facts) {
      const auto code = facts.error().code;
      if (code != ec::ranks_diverged && code != ec::copy_failed)
        return tl::unexpected{facts.error()};
      // The cache serves no hits any more: everything is computed again.
      schedule_.restart_all();
      facts = step_result{};
    }
    schedule_.stepped(*facts);
    is_in_flight_ = facts->in_flight;
    return {};
  }

  // -- handoffs -------------------------------------------------------------------

  /// Lets receivers read prompts that have room now.
  void open_handoffs() {
    for (const auto* each : schedule_.list(&sequence::awaits_receiver)) {
      const auto& wanted = each->request;
      auto offer = parts_.sender->open(
        {wanted.id, wanted.receiver_pages, wanted.prompt.size(), wanted.receiver_ranks});
      if (offer) {
        schedule_.open_handoff(wanted.id);
        give_out({.id = wanted.id, .message = std::move(*offer)});
      } else if (offer.error().code != ec::limit_reached) { // Else until another handoff ends.
        schedule_.fail(wanted.id, offer.error().detail);
      }
    }
  }

  void stored(uint32_t layer) override {
    for (const auto* each : in_pass_)
      parts_.sender->stage(each->request.id, layer, each->pages, each->tokens_after_pass());
  }

  void stored_everywhere(uint32_t layer) override {
    for (const auto* each : in_pass_) {
      const auto id = each->request.id;
      give_out({.id = id, .message = parts_.sender->announce(id, layer)});
    }
  }

  /// Goes on with completions whose KV has come to all ranks, or will not come to some.
  void receive_handoffs(const std::vector<handoff_event>& events) {
    is_ahead_ = false;
    for (const auto id : schedule_.take_dropped())
      parts_.receiver->close(id);
    const auto waiting = schedule_.list(&sequence::is_receiving);
    // Per handoff: ranks where it failed, and pages that are missing on any.
    auto facts = std::vector<float>{};
    for (const auto* each : waiting) {
      const auto& wanted = each->request;
      parts_.receiver->open(wanted.id, each->computed_tokens / parts_.schedule.page_size,
                            wanted.prompt.size(), each->pages);
      for (const auto& event : events)
        if (event.id == wanted.id && event.attempt == each->attempt)
          parts_.receiver->hear(wanted.id, event.message);
      const auto state = parts_.receiver->state(wanted.id);
      facts.push_back(state.failure.code == ec::none ? 0.0F : 1.0F);
      facts.push_back(static_cast<float>(state.missing));
      is_ahead_ = is_ahead_ || (state.first_token && state.missing == 0);
      if (state.failure.code != ec::none)
        spdlog::warn("completion {}: no KV from its prefill instance: {}", wanted.id,
                     state.failure.detail);
    }
    parts_.ranks->sum(facts);
    for (auto i = size_t{0}; i < waiting.size(); ++i) {
      const auto id = waiting[i]->request.id;
      const auto first = parts_.receiver->state(id).first_token;
      const auto has_failed
        = facts[2 * i] > 0 || first.value_or(0) >= parts_.model->config().vocabulary;
      if (!has_failed && (facts[2 * i + 1] > 0 || !first))
        continue;
      parts_.receiver->close(id);
      if (has_failed)
        schedule_.miss_handoff(id);
      else
        schedule_.receive(id, *first);
    }
  }

  // -- messages -------------------------------------------------------------------

  /// Applies operations and gives the answers to the scheduler.
  result<void> apply(scheduler::operations list) {
    auto answers = tree_answers{};
    if (!list.empty())
      answers
        = HICACHE_TRY(ask<tree_answers>(hicache::atom::apply_v, tree_operations{std::move(list)}));
    schedule_.answered(answers);
    return {};
  }

  /// Asks the tree, and waits for its answer.
  template <class Answer, class... Message>
  result<Answer> ask(Message... message) {
    auto answer = result<Answer>{};
    self_->request(parts_.tree, caf::infinite, std::move(message)...)
      .receive([&](const Answer& given) { answer = given; },
               [&](const caf::error& err) { answer = tl::unexpected{from_caf(err)}; });
    return answer;
  }

  /// Only rank 0 knows who wants it.
  void give_out(const completion_output& output) {
    const auto sink = sinks_.find(output.id);
    if (sink == sinks_.end())
      return;
    sink->second(output);
    if (output.finish != finish_reason::none)
      sinks_.erase(sink);
  }

  caf::scoped_actor& self_;
  const engine_parts parts_;
  const std::function<bool()> must_stop_;
  scheduler schedule_;
  /// Rank 0: for the next turn.
  turn_input incoming_;
  /// Rank 0: who wants the completions.
  std::map<completion_id, completion_sink> sinks_;
  /// Prefill: what this pass computes for receivers.
  scheduler::sequence_list in_pass_;
  /// Decode: one is complete here, and not yet on other ranks.
  bool is_ahead_ = false;
  /// A step may have something to tell although nothing is computed.
  bool is_in_flight_ = false;
};

} // namespace

result<uint64_t> run_engine(caf::scoped_actor& self, engine_parts parts,
                            std::function<bool()> must_stop) {
  return engine{self, std::move(parts), std::move(must_stop)}.serve();
}

} // namespace llama
