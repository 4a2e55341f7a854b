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

/// Fixed settings of a fetcher.
struct fetcher_options {
  /// Where pages are, by the deadline; none where the index does not say. May block.
  std::function<placements(std::span<const page_key>, time_point)> locate;
  replicator_actor replicator;
  /// Where the pages shall go, and this member.
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

  /// A page, and which of its replicas is tried next.
  struct open_page {
    segment_page page;
    replica_list replicas;
    size_t next = 0;
  };

  /// Pages that one request is about.
  struct fetch_job {
    std::vector<open_page> pages;
    time_point deadline;
    /// Requests that are not answered yet.
    size_t waiting = 0;
    caf::typed_response_promise<atom::ok> promise;
  };

  using job_ptr = std::shared_ptr<fetch_job>;

  /// Has each page copied from its next replica; answers when there is none left to try.
  void try_next(const job_ptr& job);

  /// One request has ended: these pages are still wanted.
  void note(const job_ptr& job, std::vector<open_page> failed);

  // -- data -------------------------------------------------------------------

  fetcher_actor::pointer self;
  fetcher_options options;
};

/// Brings pages of other members into this process's segment: asks the index for the pages of one
/// request at a time, and has the replicator read them, from one member after the other until one
/// has them. Spawn detached, since asking the index blocks.
fetcher_actor::behavior_type fetcher(fetcher_actor::stateful_pointer<fetcher_state> self,
                                     fetcher_options options);

} // namespace hicache
