#pragma once

#include "backends/cluster/member_figures.hpp"
#include "backends/disk_figures.hpp"
#include "base/limits.hpp"
#include "cache/store/client_table.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

struct node_options {
  /// Sent to clients when they attach.
  node_info info;
  /// The memory of the segment. Must outlive the actor.
  std::span<std::byte> memory;
  segment_actor segment;
  /// The disk tier; null if there is none.
  disk_tier_actor disk;
  /// Fetches pages of other members; null if there are no others.
  fetcher_actor fetcher;
  client_shares shares;
  /// Longest duration of a lease; at most limits::node_lease_time.
  duration lease_time = limits::node_lease_time;
  /// Written by the segment; not null.
  std::shared_ptr<const member_figures> figures;
  /// Written by the disk tier; null if there is none.
  std::shared_ptr<const disk_figures> on_disk;
  /// Capacity of the disk tier, and node_status::disk_stores.
  uint64_t disk_bytes = 0;
  std::string disk_stores;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates node
struct node_state {
  static inline constexpr auto name = "node";

  explicit node_state(node_actor::pointer owner) : self(owner) {}

  caf::result<node_info> attach(const client_info& who);

  caf::result<reserved_pages> reserve(const wanted_pages& wanted);

  caf::result<page_totals> commit(const complete_pages& complete);

  caf::result<page_totals> abort(const client_ticket& reservation);

  caf::result<leased_pages> look_up(const page_lookup& wanted);

  caf::result<page_totals> release(const client_ticket& lease);

  caf::result<page_totals> prefetch(const page_prefetch& wanted);

  caf::result<page_totals> check(const key_batch& doubtful);

  caf::result<page_totals> remove(const key_batch& unwanted);

  caf::result<page_totals> clear(const namespace_pages& unwanted);

  node_status status(const status_query& query) const;

  void tick();

  // -- internal steps ---------------------------------------------------------

  /// The client that sent the current message; 0 if it has not attached.
  client_id sender() const;

  /// An error handler that refuses a request and passes the error on.
  template <class Promise>
  auto refusal(uint64_t request, Promise promise);

  /// Frees a client's state after its connection ended.
  void lose(const caf::actor_addr& client);

  /// A lookup that is not granted yet.
  struct search {
    uint64_t request = 0;
    client_info who;
    std::vector<page_key> keys;
    bool is_chain = false;
    /// For fetching pages that are not in memory.
    time_point deadline;
    /// By key; `present` slots are held.
    segment_slots slots;
    /// Called when all sources have been tried.
    std::function<void(search&)> then;
    /// Called instead if the segment fails; no page is held then.
    std::function<void(const caf::error&)> otherwise;
  };

  using search_ptr = std::shared_ptr<search>;

  /// Pages that a client reported as damaged, until the segment has verified all of them.
  struct inspection {
    client_id client = 0;
    uint64_t request = 0;
    std::vector<page_key> keys;
    size_t next = 0;
    caf::typed_response_promise<page_totals> promise;
  };

  /// Has the segment verify the next page. One at a time: it reads the whole page, and other
  /// clients' requests run in between.
  void inspect(const std::shared_ptr<inspection>& doubtful);

  /// Looks for pages everywhere, and answers what `then` makes of them. If the segment fails, the
  /// request is refused and answered with the error.
  /// @param wanted A page_lookup or page_prefetch.
  template <class Answer, class Wanted, class Then>
  caf::result<Answer> search_for(const Wanted& wanted, Then then);

  /// Holds the pages in memory, then fetches missing ones from the disk and from other members if
  /// the deadline allows.
  void find(const search_ptr& wanted);

  /// Holds missing pages that the segment has by now, then calls `then`.
  void hold_missing(const search_ptr& wanted, std::function<void()> then);

  /// Fetches missing pages from `from` up to the deadline, holds them, then calls `then`.
  template <class Source>
  void bring(const search_ptr& wanted, const Source& from, std::function<void()> then);

  /// Has published pages written to the disk.
  void keep_on_disk(const segment_slots& published, const client_info& who);

  /// Aborts slots that will not be written.
  void give_back(segment_slots slots);

  /// Releases pages that are no longer read.
  void end_holds(segment_slots slots);

  /// Keeps the timer that expires leases running.
  void keep_ticking();

  // -- data -------------------------------------------------------------------

  node_actor::pointer self;
  node_options options;
  // Set once, by node().
  std::optional<client_table> clients;
  std::map<caf::actor_addr, client_id> client_of;
  client_id last_client = 0;
  bool is_ticking = false;
};

/// Serves the memory of a segment to processes of this host: tracks which client reads and writes
/// what (client_table); the segment does the work. A client's reservations and leases end with its
/// connection.
/// @pre options.memory is the memory of options.segment
node_actor::behavior_type node(node_actor::stateful_pointer<node_state> self, node_options options);

} // namespace hicache
