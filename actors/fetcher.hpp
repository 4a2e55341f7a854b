#pragma once

#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace hicache {

struct fetcher_options {
  /// Looks up the replicas of pages by the deadline; none where the index has no reply. May block.
  std::function<placements(std::span<const page_key>, time_point)> locate;
  replicator_actor replicator;
  /// The target of the pages.
  segment_actor segment;
  uint64_t member = 0;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates fetcher
struct fetcher_state {
  static inline constexpr auto name = "fetcher";

  explicit fetcher_state(fetcher_actor::pointer owner) : self(owner) {}

  caf::result<atom::ok> fetch(const page_fetch& wanted);

  // -- internal steps ---------------------------------------------------------

  /// A page and its next replica to try, those in memory first.
  struct open_page {
    segment_page page;
    replica_list replicas;
    size_t next = 0;
  };

  struct fetch_job {
    std::vector<open_page> pages;
    time_point deadline;
    /// Replicator requests without a reply yet.
    size_t waiting = 0;
    caf::typed_response_promise<atom::ok> promise;
  };

  using job_ptr = std::shared_ptr<fetch_job>;

  /// Requests each page from its next replica; replies when no replica is left to try.
  void try_next(const job_ptr& job);

  /// Handles the end of one request; `failed` pages are still missing.
  void note(const job_ptr& job, std::vector<open_page> failed);

  // -- data -------------------------------------------------------------------

  fetcher_actor::pointer self;
  fetcher_options options;
};

/// Copies pages of other members into this process's segment: locates the pages of one request at a
/// time and has the replicator read them, trying one replica after another. Spawn detached, since
/// index lookups block.
fetcher_actor::behavior_type fetcher(fetcher_actor::stateful_pointer<fetcher_state> self,
                                     fetcher_options options);

} // namespace hicache
