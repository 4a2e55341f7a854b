#pragma once

#include "backends/cluster/lent_pages.hpp"
#include "backends/storage_queue.hpp"
#include "base/clock.hpp"
#include "cache/geometry.hpp"
#include "cache/store/store_breaker.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hicache {

/// Who writes a page that several ranks hold alike (`writer_of`).
struct page_writers {
  /// This rank, counted among those.
  uint32_t rank = 0;
  /// Ranks that share the writing; 1: this rank writes all of its pages.
  uint32_t ranks = 1;
};

/// Fixed settings of a storage actor.
struct storage_options {
  /// What this rank's objects are: model, geometry (pages with another fingerprint are other
  /// pages).
  std::string fingerprint;
  /// What this rank holds of each page; one object each. Together all of its heads.
  std::vector<head_group> groups;
  /// Where L2 pages lie, from `host_memory` on.
  pool_geometry host_geometry;
  /// L2; must outlive the actor.
  std::byte* host_memory = nullptr;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
  page_writers writers = {};
  /// Takes pages of L2 back before they are written to; null if none are lent.
  std::shared_ptr<lent_pages> lent = {};
  /// Told when the store is left alone, once each time; may be empty. Called by the actor.
  std::function<void(const error&)> notice = {};
};

/// A batch of pages whose objects are being moved.
struct open_move {
  caf::typed_response_promise<storage_outcome> promise;
  /// For each page whether its objects are among those moved; the others are another rank's.
  std::vector<bool> moved;
  /// Pages at the end of the batch that are not given to the store, since it is being tried with a
  /// few.
  size_t withheld = 0;
};

/// A look-up of a batch of pages.
using open_count = caf::typed_response_promise<uint64_t>;

/// A batch that the queue has and whose deadline has not passed.
struct open_call {
  store_call kind = store_call::exists;
  store_breaker::pass pass;
  std::variant<open_count, open_move> asker;
  time_point deadline{};
  /// What the queue calls it.
  uint64_t queued = 0;
};

/// A batch that was answered when its deadline passed, and whose call has not returned.
struct late_call {
  /// Pages of L2 that it may touch.
  uint64_t pages = 0;
  std::vector<caf::typed_response_promise<atom::ok>> waiting;
};

/// A breaker, and when its state was entered on the calendar.
struct watched_breaker {
  store_breaker breaker;
  int64_t since_s = 0;
};

/// @relates storage
struct storage_state {
  static inline constexpr auto name = "storage";

  explicit storage_state(storage_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<uint64_t> exists(const storage_batch& batch, caf::timespan timeout);

  caf::result<storage_outcome> get(const storage_batch& batch, caf::timespan timeout);

  caf::result<storage_outcome> set(const storage_batch& batch, caf::timespan timeout);

  caf::result<storage_outcome> remove(const storage_batch& batch, caf::timespan timeout);

  caf::result<atom::ok> drain(uint64_t ticket);

  void finish(const storage_completion& completion);

  /// Answers the batches whose deadline has passed.
  void expire();

  storage_status status();

  caf::result<storage_health_ptr> health(caf::timespan timeout);

  void hear_health(const storage_health_ptr& health);

  // -- internal steps ---------------------------------------------------------

  /// The objects of a batch's pages: page by page, all groups of each.
  std::vector<page_key> object_names(const storage_batch& batch) const;

  /// The pieces of L2 that hold a group of a page, in object order.
  template <class Byte>
  std::vector<std::span<Byte>> parts_of(page_index page, const head_group& group) const;

  bool is_writer_of(const page_key& page) const;

  watched_breaker& breaker_of(store_call kind);

  /// @returns nothing if a call must not go to the store
  std::optional<store_breaker::pass> admit(store_call kind);

  /// Lets something happen to a breaker, and tells who wants to know if its state changed.
  void with_breaker(store_call kind, const std::function<void(store_breaker&)>& change);

  /// Answers a batch that must not go to the store.
  storage_outcome refused(size_t pages) const;

  /// Keeps an asker until its objects are finished or late.
  /// @returns the ticket of the batch
  uint64_t open(open_call call);

  /// The callback that brings the outcome of a batch back to the actor.
  storage_queue::pages_callback bring(uint64_t ticket);

  /// Takes note of what the queue calls a batch.
  void is_queued(uint64_t ticket, uint64_t number);

  /// Sets the timer for the batch that is late next.
  void set_timer();

  /// The deadline of a batch has passed.
  void answer_late(uint64_t ticket, open_call& call);

  void update_stuck();

  storage_actor::pointer self;
  std::optional<storage_options> options; // Set once, by storage().
  /// Of each of options->groups.
  std::vector<page_key> masks;
  std::shared_ptr<storage_queue> queue;
  uint64_t last_ticket = 0;
  std::map<uint64_t, open_call> calls;
  /// Of the calls, with their tickets; and when the timer fires, if it is set.
  std::set<std::pair<time_point, uint64_t>> deadlines;
  std::optional<time_point> timer;
  std::map<uint64_t, late_call> late;
  watched_breaker read_breaker;
  watched_breaker write_breaker;
  /// What the store said last, and who waits for what it says next, until when.
  storage_health_ptr last_health = std::make_shared<const backend_health>();
  bool is_asking_health = false;
  std::vector<std::pair<time_point, caf::typed_response_promise<storage_health_ptr>>> wondering;
};

/// Stands in front of one L3 backend behind a queue with worker threads of its own, and translates
/// between pages of L2 and objects, one for each head group. A page is there if all of its objects
/// are; what happened to it is what happened to the first of them that failed.
///
/// Every batch is answered when its deadline passes at the latest. If the store's call has not
/// returned then, it may still touch the pages: the answer carries a ticket. A breaker each for
/// reads and writes decides what goes to the store (`store_breaker`).
storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options, std::shared_ptr<storage_queue> queue);

} // namespace hicache
