#pragma once

#include "actors/page_objects.hpp"
#include "cache/store/store_breaker.hpp"
#include "hicache/clock.hpp"
#include "hicache/geometry.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"

#include <caf/response_promise.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace hicache {

/// Fixed settings of a storage actor.
struct storage_options {
  std::shared_ptr<const page_objects> objects;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
  /// Told when a breaker opens, once each time; may be empty. Called by the actor.
  std::function<void(const error&)> notice = {};
};

/// A batch that the store has and whose deadline has not passed.
struct open_call {
  store_call kind = store_call::exists;
  store_breaker::pass pass;
  caf::response_promise promise;
  time_point deadline{};
  /// Pages that the asker named.
  size_t pages = 0;
  /// What the store calls it.
  storage_backend::batch_number number = 0;
};

/// A batch that was answered when its deadline passed, and that the store has not finished.
struct late_call {
  /// Pages of L2 that the store may touch: they are in quarantine.
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

  caf::result<storage_hit> exists(const storage_batch& batch, caf::timespan timeout);

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

  watched_breaker& breaker_of(store_call kind);

  /// @returns nothing if a call must not go to the store
  std::optional<store_breaker::pass> admit(store_call kind);

  /// Changes a breaker, and logs and notifies if its state changed.
  void with_breaker(store_call kind, const std::function<void(store_breaker&)>& change);

  /// The answer to a batch that must not go to the store.
  storage_outcome refused(size_t pages) const;

  /// Gives a batch to the store and keeps its asker until the store has finished it or it is late.
  /// @param submit Called with the deadline and the ticket of the batch; returns the store's
  /// number.
  template <class Answer, class Submit>
  caf::typed_response_promise<Answer> open(store_call kind, store_breaker::pass pass, size_t pages,
                                           caf::timespan timeout, Submit submit);

  /// The callback that brings the outcome of a batch to the actor's mailbox.
  /// @param moved For each page whether its objects are in the batch; the others are another
  /// rank's.
  /// @param withheld Pages at the end that are kept from the store while it is probed.
  storage_backend::pages_done bring(uint64_t ticket, std::vector<bool> moved, size_t withheld);

  /// Sets the timer for the batch that is late next.
  void set_timer();

  /// Answers a batch whose deadline has passed.
  void answer_late(uint64_t ticket, open_call& call);

  void update_stuck();

  storage_actor::pointer self;
  storage_options options;
  std::shared_ptr<storage_backend> store;
  uint64_t last_ticket = 0;
  std::map<uint64_t, open_call> calls;
  /// Of the calls, with their tickets; and when the timer fires, if it is set.
  std::set<std::pair<time_point, uint64_t>> deadlines;
  std::optional<time_point> timer;
  std::map<uint64_t, late_call> late;
  watched_breaker read_breaker;
  watched_breaker write_breaker;
  /// The latest report of the store, and who waits for the next one, until when.
  storage_health_ptr last_health = std::make_shared<const backend_health>();
  bool is_asking_health = false;
  std::vector<std::pair<time_point, caf::typed_response_promise<storage_health_ptr>>> wondering;
};

/// Stands in front of one L3 store, and translates between pages of L2 and objects, one for each
/// head group. A page is there if all of its objects are; its outcome is that of the first object
/// that failed.
///
/// The deadlines of all stores are kept here. A timer answers every batch when its deadline passes
/// at the latest. If the store has not finished it by then, it may still touch the pages: they are
/// in quarantine, and the answer carries a ticket. One breaker each for reads and writes decides
/// what goes to the store (`store_breaker`).
storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options,
                                     std::shared_ptr<storage_backend> store);

} // namespace hicache
