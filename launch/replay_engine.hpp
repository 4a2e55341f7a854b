#pragma once

#include "base/limits.hpp"
#include "hicache/clock.hpp"
#include "hicache/runtime.hpp"
#include "launch/kv_pattern.hpp"
#include "launch/replay_report.hpp"
#include "launch/replay_workload.hpp"
#include "launch/stop_signal.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace hicache {

enum class verify_mode : uint8_t { off, sample, all };

/// How the workload's conversations use the cache: without sessions, with sessions that refer to
/// their last prefix, or with sessions that keep their pages between turns.
enum class session_mode : uint8_t { off, refer, stream };

/// Options of a replay; equal on all ranks.
struct replay_options {
  /// Requests arrive at their recorded times (divided by speedup) instead of one after the other.
  bool timed = false;
  double speedup = 1;
  /// Simulated prefill speed; 0: as fast as bytes can be written.
  double prefill_tokens_per_second = 0;
  verify_mode verify = verify_mode::sample;
  bool cache_output = false;
  session_mode sessions = session_mode::off;
  bool storage = false;
  /// Seeds the KV pattern, so that instances of one namespace compute the same bytes.
  std::string name_space;
  /// Timeout for reductions between the ranks' engines.
  duration step_timeout = limits::step_timeout;
  uint32_t first_head = 0;
};

/// Engine that replays a workload: uses the cache as an inference engine does, on real KV bytes, in
/// the same way on every rank of the instance (SPMD). Blocks its thread.
class replay_engine {
public:
  /// @param progress Called after each turn with the number of requests done and the totals so far.
  using progress_callback = std::function<void(uint64_t done, const replay_totals& so_far)>;

  replay_engine(rank_runtime& runtime, const std::vector<replay_request>& workload,
                const replay_options& options, const stop_signal& stop, progress_callback progress);

  /// Serves the workload until its end or a signal. Collective.
  /// @returns rank_unresponsive or another fatal error; totals() has the totals so far
  result<void> run();

  /// Sums the totals over the ranks. Collective; after run().
  result<void> gather();

  const replay_totals& totals() const noexcept { return totals_; }

private:
  struct open_request {
    size_t position = 0;
    token_buffer tokens;
    std::vector<uint64_t> hashes;
    time_point arrived;
    bool scheduled = false;
    bool ready = false;
    /// Released to make room for another request; matched again when that one has been served.
    bool parked = false;
  };

  /// State agreed by all ranks at the start of a turn.
  struct turn {
    uint64_t arrived = 0;
    bool stop = false;
  };

  result<void> run_turns();

  result<std::vector<int64_t>> reduce(std::vector<int64_t> values);

  /// Counts a reduction that timed out, and names the missing ranks.
  error missing_rank();

  result<tree_answers> apply(std::vector<tree_operation> operations);

  tree_answer apply_one(tree_operation operation);

  /// Applies operations whose answers do not matter.
  result<void> tell(std::vector<tree_operation> operations);

  /// Reduces arrivals and the stop flag over the ranks.
  result<turn> begin_turn();

  /// Opens requests that have arrived, up to the limit of open ones.
  result<void> admit(uint64_t arrived);

  /// True if the request's session has an open request.
  bool is_session_busy(const replay_request& wanted) const;

  /// Opens the request's session on its first turn.
  result<void> open_session(const replay_request& wanted);

  match_request match_of(const open_request& request) const;

  /// Schedules the next request in line if none is ready to run. Those behind it continue to
  /// prefetch, as in the waiting queue of a busy engine.
  result<void> schedule_next();

  /// Releases all requests but the oldest if each waits for room held by another.
  result<void> park_if_stuck();

  /// Rematches parked requests.
  result<void> unpark();

  /// True if room may become available: copies will finish, or others will release their pages.
  result<bool> may_get_room();

  /// Serves ready requests as far as there is room. @returns whether any was served
  result<bool> serve_ready();

  enum class service : uint8_t { served, no_room };

  result<service> serve(open_request& request);

  /// Compares cached pages with their expected content.
  result<void> verify(const open_request& request, const std::vector<page_index>& pages,
                      uint64_t tokens);

  /// Runs one step and marks requests as ready. If the instance has diverged or a copy failed,
  /// restarts the open requests without hits.
  result<step_result> step(std::chrono::nanoseconds wait);

  /// Steps until nothing is in flight, so that later results depend only on earlier requests.
  result<void> drain();

  /// Restarts requests that lost pages because a load failed on some rank.
  result<void> restart_failed(const std::vector<request_id>& failed);

  result<void> restart_open();

  /// Releases the requests interrupted by a signal.
  result<void> abandon_open();

  rank_runtime& runtime_;
  const std::vector<replay_request>& workload_;
  const replay_options& options_;
  const stop_signal& stop_;
  progress_callback progress_;
  /// Generation of each open session.
  absl::flat_hash_map<session_id, uint64_t> sessions_;
  kv_pattern pattern_;
  replay_totals totals_;
  time_point start_;
  size_t next_ = 0;
  bool in_flight_ = false;
  /// The ranks have diverged and no longer run the same turns.
  bool is_alone_ = false;
  std::deque<open_request> open_;
};

} // namespace hicache
