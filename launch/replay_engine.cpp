#include "launch/replay_engine.hpp"

#include "backends/ask.hpp"
#include "base/try.hpp"
#include "cache/hash/page_hash.hpp"
#include "transport/gather.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace hicache {

namespace {

using clock = std::chrono::steady_clock;

/// How long a step waits for events before it reduces; also bounds the reaction time to a signal.
constexpr auto step_patience = std::chrono::milliseconds{50};

/// Maximum number of open requests in a timed replay: enough to keep every tier busy, few enough
/// that their locked prefixes fit.
constexpr uint64_t timed_concurrency = 32;

/// --verify sample checks one page in this many.
constexpr uint64_t sample_one_in = 16;

double milliseconds(clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

} // namespace

replay_engine::replay_engine(rank_runtime& runtime, const std::vector<replay_request>& workload,
                             const replay_options& options, const stop_signal& stop,
                             progress_callback progress)
  : runtime_(runtime), workload_(workload), options_(options), stop_(stop),
    progress_(std::move(progress)),
    pattern_(runtime.device_geometry(), runtime.l1_pool(), runtime.device_is_host_addressable(),
             options.first_head) {}

result<void> replay_engine::run() {
  start_ = clock::now();
  auto outcome = run_turns();
  totals_.wall_s = milliseconds(clock::now() - start_) / 1000;
  totals_.counters = runtime_.counters();
  return outcome;
}

result<void> replay_engine::run_turns() {
  while (next_ < workload_.size() || !open_.empty()) {
    const auto now = HICACHE_TRY(begin_turn());
    if (now.stop) {
      totals_.interrupted = true;
      return abandon_open();
    }
    HICACHE_TRY(admit(now.arrived));
    HICACHE_TRY(schedule_next());
    const auto served = HICACHE_TRY(serve_ready());
    if (!options_.timed && open_.empty())
      HICACHE_TRY(drain());
    else if (in_flight_)
      HICACHE_TRY(step(served ? std::chrono::milliseconds{0} : step_patience));
    progress_(totals_.requests, totals_);
  }
  return {};
}

result<void> replay_engine::gather() {
  const auto mine = totals_.summed();
  auto rows = HICACHE_TRY(reduce(gather_offer(runtime_.rank(), runtime_.ranks(), mine)));
  auto sums = std::vector<int64_t>(mine.size());
  for (const auto row : gathered(runtime_.ranks(), rows))
    for (auto i = size_t{0}; i < sums.size(); ++i)
      sums[i] += row[i];
  totals_.take_sums(sums);
  return {};
}

// -- talking to the runtime ---------------------------------------------------

result<std::vector<int64_t>> replay_engine::reduce(std::vector<int64_t> values) {
  // The timeout of a step, so that a rank that is still computing is not considered missing.
  auto minimum = ask<reduced>(runtime_.system(), runtime_.rank_reduction(),
                              caf::timespan{options_.step_timeout}, atom::reduce_v,
                              reduction{reduction_channel::engine, std::move(values)});
  if (minimum)
    return std::move(minimum->values);
  return tl::unexpected{minimum.error().code == ec::deadline_exceeded ? missing_rank()
                                                                      : minimum.error()};
}

error replay_engine::missing_rank() {
  ++totals_.engine_errors;
  const auto who
    = ask<std::string>(runtime_.system(), runtime_.rank_reduction(), caf::infinite, atom::missing_v,
                       static_cast<uint8_t>(reduction_channel::engine));
  return {ec::rank_unresponsive,
          "the engines' turn was not agreed on in time: " + (who ? *who : to_string(who.error()))};
}

result<tree_answers> replay_engine::apply(std::vector<tree_operation> operations) {
  return ask<tree_answers>(runtime_.system(), runtime_.tree(), caf::infinite, atom::apply_v,
                           tree_operations{std::move(operations)});
}

tree_answer replay_engine::apply_one(tree_operation operation) {
  auto answers = HICACHE_TRY(apply({std::move(operation)}));
  return std::move(answers.list[0]);
}

result<void> replay_engine::tell(std::vector<tree_operation> operations) {
  if (!operations.empty())
    HICACHE_TRY(apply(std::move(operations)));
  return {};
}

result<step_result> replay_engine::step(std::chrono::nanoseconds wait) {
  const auto begin = clock::now();
  auto outcome = ask<step_result>(runtime_.system(), runtime_.tree(), caf::infinite, atom::step_v,
                                  caf::timespan{wait});
  if (!outcome
      && (outcome.error().code == ec::ranks_diverged || outcome.error().code == ec::copy_failed)) {
    // The runtime has counted the error and serves no more hits. The engine continues without
    // cache. Diverged ranks step alone, so each must track what its requests wait for.
    is_alone_ = is_alone_ || outcome.error().code == ec::ranks_diverged;
    spdlog::error("the cache is off: {}", to_string(outcome.error()));
    HICACHE_TRY(restart_open());
    outcome = step_result{};
    outcome->in_flight = true;
  }
  if (!outcome)
    return outcome;
  if (outcome->reduced)
    totals_.step_us.push_back(milliseconds(clock::now() - begin) * 1000);
  in_flight_ = outcome->in_flight;
  for (const auto& ready : outcome->ready)
    for (auto& request : open_)
      if (request.position + 1 == ready.request)
        request.ready = true;
  if (!outcome->failed.empty())
    HICACHE_TRY(restart_failed(outcome->failed));
  return outcome;
}

result<void> replay_engine::drain() {
  while (in_flight_)
    HICACHE_TRY(step(step_patience));
  return {};
}

// -- the life of requests -----------------------------------------------------

result<replay_engine::turn> replay_engine::begin_turn() {
  auto arrived = uint64_t{workload_.size()};
  if (options_.timed) {
    const auto now = milliseconds(clock::now() - start_) * options_.speedup;
    arrived = next_;
    while (arrived < workload_.size() && workload_[arrived].arrival_ms <= now)
      ++arrived;
    if (arrived == next_ && open_.empty() && !in_flight_) {
      const auto until_next = (workload_[next_].arrival_ms - now) / options_.speedup;
      stop_.wait_for(std::min(std::chrono::nanoseconds{static_cast<int64_t>(until_next * 1e6)},
                              std::chrono::nanoseconds{step_patience}));
    }
  }
  if (is_alone_)
    return turn{arrived, stop_.raised()};
  // Clocks and signals differ between ranks: use arrivals seen by all, and stop if any rank stops.
  const auto minimum
    = HICACHE_TRY(reduce({static_cast<int64_t>(arrived), stop_.raised() ? -1 : 0}));
  return turn{static_cast<uint64_t>(minimum[0]), minimum[1] != 0};
}

bool replay_engine::is_session_busy(const replay_request& wanted) const {
  return options_.sessions != session_mode::off && wanted.session != 0
         && std::ranges::any_of(open_, [&](const open_request& request) {
              return workload_[request.position].session == wanted.session;
            });
}

result<void> replay_engine::open_session(const replay_request& wanted) {
  if (options_.sessions == session_mode::off || wanted.session == 0
      || sessions_.contains(wanted.session))
    return {};
  const auto opened = HICACHE_TRY(
    apply_one(open_session_request{wanted.session, options_.sessions == session_mode::stream}));
  sessions_[wanted.session] = std::get<session_result>(opened).generation;
  return {};
}

match_request replay_engine::match_of(const open_request& request) const {
  const auto& wanted = workload_[request.position];
  auto match = match_request{request.position + 1, {}, request.tokens, wanted.input_length - 1, {}};
  if (const auto session = sessions_.find(wanted.session); session != sessions_.end())
    match.session = {session->first, session->second};
  return match;
}

result<void> replay_engine::admit(uint64_t arrived) {
  const auto concurrency = options_.timed ? timed_concurrency : 1;
  auto operations = std::vector<tree_operation>{};
  const auto seed = fingerprint_of(options_.name_space);
  while (next_ < arrived && open_.size() < concurrency) {
    const auto& wanted = workload_[next_];
    if (is_session_busy(wanted))
      break;
    HICACHE_TRY(open_session(wanted));
    auto& request = open_.emplace_back();
    request.position = next_++;
    request.tokens = options_.cache_output ? prompt_and_output_tokens(wanted, request.position)
                                           : prompt_tokens(wanted);
    request.hashes = kv_pattern::prefix_hashes(*request.tokens, seed);
    request.arrived
      = options_.timed
          ? start_
              + std::chrono::duration_cast<clock::duration>(
                std::chrono::duration<double, std::milli>(wanted.arrival_ms / options_.speedup))
          : clock::now();
    const auto id = request_id{request.position + 1};
    // The last token of the prompt is always computed: its output is the first new token.
    operations.emplace_back(match_of(request));
    if (options_.storage)
      operations.emplace_back(prefetch_request{id});
  }
  if (operations.empty())
    return {};
  const auto answers = HICACHE_TRY(apply(std::move(operations)));
  for (const auto& answer : answers.list)
    HICACHE_TRY(answer);
  return {};
}

result<void> replay_engine::schedule_next() {
  // Parked requests wait for the others.
  const auto can_run = [](const open_request& x) { return x.ready && !x.parked; };
  const auto can_be_scheduled = [](const open_request& x) { return !x.scheduled && !x.parked; };
  if (std::ranges::any_of(open_, can_run))
    return {};
  const auto next = std::ranges::find_if(open_, can_be_scheduled);
  if (next == open_.end())
    return {};
  const auto scheduled = HICACHE_TRY(apply_one(schedule_request{next->position + 1}));
  next->scheduled = true;
  next->ready = std::get<schedule_result>(scheduled).ready;
  in_flight_ |= !next->ready;
  return {};
}

result<bool> replay_engine::may_get_room() {
  if (in_flight_)
    return true;
  // Under write_back the tree may have started to write pages to L2 to make room.
  return step(step_patience).map([this](const step_result& done) {
    return done.was_in_flight || std::ranges::count(open_, false, &open_request::parked) > 1;
  });
}

result<void> replay_engine::park_if_stuck() {
  const auto waits = [](const open_request& x) { return x.scheduled && !x.ready; };
  if (in_flight_ || open_.empty() || std::ranges::any_of(open_, waits))
    return {};
  auto operations = std::vector<tree_operation>{};
  for (auto i = open_.begin() + 1; i != open_.end(); ++i)
    if (!std::exchange(i->parked, true))
      operations.emplace_back(release_request{i->position + 1});
  return tell(std::move(operations));
}

result<void> replay_engine::unpark() {
  auto operations = std::vector<tree_operation>{};
  for (auto& request : open_)
    if (std::exchange(request.parked, false)) {
      operations.emplace_back(match_of(request));
      if (options_.storage && !request.scheduled)
        operations.emplace_back(prefetch_request{request.position + 1});
    }
  return tell(std::move(operations));
}

result<bool> replay_engine::serve_ready() {
  auto served = false;
  for (auto i = open_.begin(); i != open_.end();) {
    if (!i->ready || i->parked) {
      ++i;
      continue;
    }
    const auto outcome = HICACHE_TRY(serve(*i));
    if (outcome == service::no_room) {
      const auto waits = HICACHE_TRY(may_get_room());
      if (waits) {
        ++i;
        continue;
      }
      spdlog::error("request {} of the workload does not fit into the device pool",
                    workload_[i->position].line);
      ++totals_.engine_errors;
      HICACHE_TRY(apply({release_request{i->position + 1}}));
    }
    served = true;
    i = open_.erase(i);
  }
  HICACHE_TRY(served ? unpark() : park_if_stuck());
  return served;
}

result<replay_engine::service> replay_engine::serve(open_request& request) {
  const auto id = request_id{request.position + 1};
  const auto total = uint64_t{request.tokens->size()};
  const auto prompt = workload_[request.position].input_length;
  const auto answers = HICACHE_TRY(
    apply({load_request{.request = id, .known_pages = UINT64_MAX}, allocate_request{id, total}}));
  const auto missed = [](const error& why) -> result<service> {
    if (why.code == ec::out_of_device_pages)
      return service::no_room;
    return tl::unexpected{why};
  };
  if (!answers.list[0])
    return missed(answers.list[0].error());
  const auto& loaded = std::get<load_result>(*answers.list[0]);
  in_flight_ |= loaded.progress != nullptr;
  if (!answers.list[1])
    return missed(answers.list[1].error());
  const auto pages = std::get<allocate_result>(*answers.list[1]).l1_pages;
  const auto cached = loaded.l1_tokens;
  // A model would wait for each layer just before computing it. Here verification and computation
  // go token by token, so wait for all layers.
  const auto is_loaded = !loaded.progress || loaded.progress->wait(loaded.progress->layers() - 1);
  if (!is_loaded)
    ++totals_.engine_errors;
  HICACHE_TRY(verify(request, *pages, is_loaded ? cached : 0));
  if (options_.prefill_tokens_per_second > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(
      static_cast<double>(prompt - cached) / options_.prefill_tokens_per_second));
  HICACHE_TRY(pattern_.compute(request.hashes, *pages, cached, total));
  totals_.ttft_ms.push_back(milliseconds(clock::now() - request.arrived));
  auto ending = std::vector<tree_operation>{
    insert_request{.request = id, .tokens = request.tokens, .known_pages = UINT64_MAX},
    release_request{id}};
  const auto session = sessions_.find(workload_[request.position].session);
  if (session != sessions_.end() && workload_[request.position].ends_session) {
    ending.emplace_back(close_session_request{{session->first, session->second}});
    sessions_.erase(session);
  }
  const auto inserted = HICACHE_TRY(apply(std::move(ending)));
  for (const auto& answer : inserted.list)
    HICACHE_TRY(answer);
  in_flight_ = true; // A write may have started; the next step determines that.
  ++totals_.requests;
  totals_.prompt_tokens += prompt;
  totals_.computed_tokens += prompt - cached;
  const auto& from = std::get<release_result>(*inserted.list[1]).provenance;
  totals_.cached_l1 += from.l1_tokens;
  totals_.cached_l2 += from.l2_tokens;
  totals_.cached_l3 += from.l3_tokens;
  for (const auto& each : from.l3_tiers)
    totals_.cached_l3_tiers[each.tier] += each.tokens;
  totals_.given_up[static_cast<size_t>(from.why)] += from.unserved_tokens;
  return service::served;
}

result<void> replay_engine::verify(const open_request& request,
                                   const std::vector<page_index>& pages, uint64_t tokens) {
  if (options_.verify == verify_mode::off)
    return {};
  const auto page_size = runtime_.device_geometry().shape().page_size;
  for (auto position = uint64_t{0}; position < tokens / page_size; ++position) {
    if (options_.verify == verify_mode::sample
        && request.hashes[position * page_size] % sample_one_in != 0)
      continue;
    const auto right = HICACHE_TRY(pattern_.check(request.hashes, pages, position));
    ++totals_.pages_checked;
    if (right)
      continue;
    if (++totals_.mismatches <= 10)
      spdlog::critical("wrong KV bytes: request {} of the workload, page {} of its prefix",
                       workload_[request.position].line, position);
  }
  return {};
}

result<void> replay_engine::restart_failed(const std::vector<request_id>& failed) {
  auto operations = std::vector<tree_operation>{};
  for (auto& request : open_)
    if (std::ranges::binary_search(failed, request.position + 1)) {
      operations.emplace_back(release_request{request.position + 1});
      operations.emplace_back(match_of(request));
      request.scheduled = request.ready = false;
    }
  return tell(std::move(operations));
}

result<void> replay_engine::restart_open() {
  auto operations = std::vector<tree_operation>{};
  for (auto& request : open_) {
    if (!std::exchange(request.parked, false))
      operations.emplace_back(release_request{request.position + 1});
    operations.emplace_back(match_of(request));
    request.scheduled = request.ready = true;
  }
  return tell(std::move(operations));
}

result<void> replay_engine::abandon_open() {
  auto operations = std::vector<tree_operation>{};
  for (const auto& request : open_)
    if (!request.parked)
      operations.emplace_back(release_request{request.position + 1});
  open_.clear();
  return tell(std::move(operations));
}

} // namespace hicache
