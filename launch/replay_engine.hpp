#pragma once

#include "base/limits.hpp"
#include "hicache/clock.hpp"
#include "hicache/runtime.hpp"
#include "launch/kv_pattern.hpp"
#include "launch/replay_report.hpp"
#include "launch/replay_workload.hpp"
#include "launch/stop_signal.hpp"

#include <absl/container/flat_hash_map.h>
#include <caf/scoped_actor.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace hicache {

enum class verify_mode : uint8_t { off, sample, all };

/// What conversations of the workload are to the cache: nothing, sessions that refer to their last
/// prefix, or sessions that keep their pages between turns.
enum class session_mode : uint8_t { off, refer, stream };

/// How a workload is replayed. Equal on all ranks.
struct replay_options {
  /// Requests arrive at their times (divided by speedup) rather than one after the other.
  bool timed = false;
  double speedup = 1;
  /// Requests under way at once when not timed.
  uint64_t concurrency = 1;
  /// Simulated speed of computation; 0: none, as fast as bytes can be written.
  double prefill_tokens_per_second = 0;
  verify_mode verify = verify_mode::sample;
  bool cache_output = false;
  session_mode sessions = session_mode::off;
  bool storage = false;
  /// Seeds the KV pattern: instances of one namespace compute the same bytes.
  std::string name_space;
  /// How long the ranks' engines wait for each other.
  duration step_timeout = limits::step_timeout;
  uint32_t first_head = 0;
};

/// An engine made of a workload: does with the cache what an inference engine does, on real KV
/// bytes, the same on every rank of the instance (SPMD). Blocks its thread.
class replay_engine {
public:
  /// @param progress Called after each turn with the requests done and the totals so far.
  using progress_callback = std::function<void(uint64_t done, const replay_totals& so_far)>;

  replay_engine(rank_runtime& runtime, const std::vector<replay_request>& workload,
                const replay_options& options, const stop_signal& stop, progress_callback progress);

  /// Serves the workload, or as much of it as comes before a signal. Collective.
  /// @returns rank_unresponsive or another error of the runtime that makes going on impossible; the
  /// totals so far are in totals().
  result<void> run();

  /// Sums what ranks add up. Collective; after run().
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
    /// It holds nothing, so that another one gets room; it is matched again when that is served.
    bool parked = false;
  };

  /// What every rank knows at the start of a turn.
  struct turn {
    uint64_t arrived = 0;
    bool stop = false;
  };

  result<std::vector<int64_t>> reduce(std::vector<int64_t> values);

  /// Counts a reduction that has just run out of time, and says which ranks it waits for.
  error missing_rank();

  result<tree_answers> apply(std::vector<tree_operation> operations);

  /// Agrees on arrivals and on stopping.
  result<turn> begin_turn();

  /// Opens the requests that have arrived, as many as may be under way.
  result<void> admit(uint64_t arrived);

  /// True if the request's session has a turn under way.
  bool is_session_busy(const replay_request& wanted) const;

  /// Opens the request's session at its first turn.
  result<void> open_session(const replay_request& wanted);

  match_request match_of(const open_request& request) const;

  /// Schedules the next request in line, if none is ready to run. Those behind it go on
  /// prefetching, as in the waiting queue of an engine that is busy.
  result<void> schedule_next();

  /// Lets go of what all requests but the oldest hold, if each of them waits for room that another
  /// one holds.
  result<void> park_if_stuck();

  /// Matches parked requests again.
  result<void> unpark();

  /// True if room may come: copies will end, or others will release their pages.
  result<bool> may_get_room();

  /// Serves the requests that are ready, as far as there is room.
  /// @returns whether any was served.
  result<bool> serve_ready();

  enum class service : uint8_t { served, no_room };

  result<service> serve(open_request& request);

  /// Compares cached pages with what they should hold.
  result<void> verify(const open_request& request, const std::vector<page_index>& pages,
                      uint64_t tokens);

  /// One step; marks requests as ready. A diverged instance starts its open requests again, without
  /// hits.
  result<step_result> step(std::chrono::nanoseconds wait);

  /// Steps until nothing is in flight, so that what follows depends on nothing but the requests
  /// before.
  result<void> drain();

  /// Requests that lost pages since a load failed on some rank begin anew.
  result<void> restart_failed(const std::vector<request_id>& failed);

  result<void> restart_open();

  /// Releases requests that a signal cut off.
  result<void> abandon_open();

  rank_runtime& runtime_;
  const std::vector<replay_request>& workload_;
  const replay_options& options_;
  const stop_signal& stop_;
  progress_callback progress_;
  caf::scoped_actor self_;
  /// Open sessions and their generations.
  absl::flat_hash_map<session_id, uint64_t> sessions_;
  kv_pattern pattern_;
  replay_totals totals_;
  time_point start_;
  size_t next_ = 0;
  bool in_flight_ = false;
  /// The ranks diverged, and no longer take the same turns.
  bool is_alone_ = false;
  std::deque<open_request> open_;
};

} // namespace hicache
