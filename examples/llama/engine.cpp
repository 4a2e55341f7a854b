#include "examples/llama/engine.hpp"

#include "base/names.hpp"
#include "base/try.hpp"
#include "hicache/caf_error.hpp"

#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <chrono>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace llama {

using namespace hicache;
using nlohmann::json;
using steady = std::chrono::steady_clock;

namespace {

/// How long a step waits for L3 if there is nothing to compute.
constexpr auto step_wait = caf::timespan{std::chrono::milliseconds{20}};

/// The same, if the KV of a prompt is on its way from another instance: nothing of that ends a
/// step.
constexpr auto handoff_wait = caf::timespan{std::chrono::milliseconds{1}};

/// Idle ranks step so often, so that L3 can be attached and detached.
constexpr auto idle_pause = std::chrono::milliseconds{250};

/// Who wants a completion.
struct client {
  caf::actor address;
  uint64_t prompt_tokens = 0;
  steady::time_point since;
  bool has_tokens = false;
};

class engine final : public pass_watch {
public:
  engine(caf::scoped_actor& self, engine_parts parts, std::function<bool()> must_stop)
    : self_(self), parts_(std::move(parts)), must_stop_(std::move(must_stop)),
      schedule_(parts_.schedule) {}

  result<uint64_t> serve() {
    auto turns = uint64_t{0};
    for (; !schedule_.has_ended(); ++turns)
      if (const auto done = turn(); !done) {
        while (!clients_.empty())
          give_out({.id = clients_.begin()->first,
                    .finish = finish_reason::failed,
                    .error = to_string(done.error())});
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
      handoff_bytes_.Set(static_cast<double>(parts_.sender->used_bytes()));
    return {};
  }

  // -- the steps of a turn --------------------------------------------------------

  /// Takes what has come since the last turn. Rank 0 waits if there is nothing to do.
  void take_messages() {
    const auto is_idle
      = parts_.ranks->rank() == 0 && schedule_.is_idle() && !is_ahead_ && !is_in_flight_;
    auto patience = is_idle && !must_stop_() ? idle_pause : std::chrono::milliseconds{0};
    for (auto is_over = false; !is_over; patience = {})
      self_->receive(
        [](hicache::atom::notice, const caf::error& what) {
          spdlog::warn("hicache: {}", to_string(from_caf(what)));
        },
        [](hicache::atom::notify) {}, [](hicache::atom::events, const cache_events_ptr&) {},
        [this](atom::submit, const completion_request& wanted, const caf::actor& address) {
          clients_.emplace(wanted.id, client{address, wanted.prompt.size(), steady::now()});
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
    load_wait_.Increment(std::chrono::duration<double>(done.load_wait).count());
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
    // Pages of each handoff that are missing, summed over the ranks; infinite if one failed.
    auto missing = std::vector<float>{};
    for (const auto* each : waiting) {
      const auto& wanted = each->request;
      parts_.receiver->open(wanted.id, each->computed_tokens / parts_.schedule.page_size,
                            wanted.prompt.size(), each->pages);
      for (const auto& event : events)
        if (event.id == wanted.id && event.attempt == each->attempt)
          parts_.receiver->hear(wanted.id, event.message);
      const auto state = parts_.receiver->state(wanted.id);
      const auto has_failed = state.failure.code != ec::none;
      missing.push_back(has_failed ? INFINITY : static_cast<float>(state.missing));
      is_ahead_ = is_ahead_ || (state.first_token && state.missing == 0);
      if (has_failed)
        spdlog::warn("completion {}: no KV from its prefill instance: {}", wanted.id,
                     state.failure.detail);
    }
    parts_.ranks->sum(missing);
    for (auto i = size_t{0}; i < waiting.size(); ++i) {
      const auto id = waiting[i]->request.id;
      const auto first = parts_.receiver->state(id).first_token;
      const auto has_failed
        = std::isinf(missing[i]) || first.value_or(0) >= parts_.model->config().vocabulary;
      if (!has_failed && (missing[i] > 0 || !first))
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
    const auto found = clients_.find(output.id);
    if (found == clients_.end())
      return;
    auto& whom = found->second;
    generated_.Increment(static_cast<double>(output.tokens.size()));
    if (!output.tokens.empty() && !std::exchange(whom.has_tokens, true))
      first_token_.Observe(std::chrono::duration<double>(steady::now() - whom.since).count());
    const auto has_ended = output.finish != finish_reason::none;
    if (has_ended) {
      counter("llama_requests_total", "Completions that ended, by how.",
              {{"finish", name_of(finish_names, output.finish)}})
        .Increment();
      prompt_.Increment(static_cast<double>(whom.prompt_tokens));
      cached_.Increment(static_cast<double>(output.cached_tokens));
      handed_.Increment(static_cast<double>(output.handed_tokens));
    }
    caf::anon_send(whom.address, output); // Last: the client may look at the metrics then.
    if (has_ended)
      clients_.erase(found);
  }

  /// A new counter, or that of the same name and labels.
  prometheus::Counter& counter(const char* name, const char* help,
                               const prometheus::Labels& labels = {}) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(*parts_.registry).Add(labels);
  }

  caf::scoped_actor& self_;
  const engine_parts parts_;
  const std::function<bool()> must_stop_;
  prometheus::Counter& prompt_ = counter("llama_prompt_tokens_total", "Tokens of their prompts.");
  prometheus::Counter& cached_
    = counter("llama_cached_tokens_total", "Tokens of these from the cache.");
  prometheus::Counter& handed_ = counter("llama_handed_tokens_total",
                                         "Tokens of these whose KV came from a prefill instance.");
  prometheus::Counter& generated_
    = counter("llama_generated_tokens_total", "Tokens of the completions.");
  prometheus::Counter& load_wait_ = counter(
    "llama_load_wait_seconds_total", "Time in which rank 0's layers waited for pages from L2.");
  prometheus::Histogram& first_token_
    = prometheus::BuildHistogram()
        .Name("llama_first_token_seconds")
        .Help("From a request to its first token.")
        .Register(*parts_.registry)
        .Add({}, prometheus::Histogram::BucketBoundaries{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                         0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30});
  prometheus::Gauge& handoff_bytes_ = prometheus::BuildGauge()
                                        .Name("llama_handoff_bytes")
                                        .Help("Memory of rank 0 that receivers may still read.")
                                        .Register(*parts_.registry)
                                        .Add({});
  scheduler schedule_;
  /// Rank 0: for the next turn.
  turn_input incoming_;
  /// Rank 0: who wants the completions.
  std::map<completion_id, client> clients_;
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
