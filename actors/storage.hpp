#pragma once

#include "actors/page_objects.hpp"
#include "cache/store/store_breaker.hpp"
#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"

#include <caf/response_promise.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace hicache {

struct storage_options {
  std::shared_ptr<const page_objects> objects;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
  /// Called by the actor each time a breaker opens; may be empty.
  std::function<void(const error&)> notice = {};
  breaker_policy breaker = {};
};

/// A batch at the store, before its deadline.
struct open_call {
  store_call kind = store_call::exists;
  store_breaker::pass pass;
  caf::response_promise promise;
  time_point deadline{};
  size_t pages = 0;
  /// The store's number for it.
  storage_backend::batch_number number = 0;
};

/// A batch that was answered at its deadline and is still running in the store.
struct late_call {
  /// Quarantined L2 pages: the store may still touch them.
  uint64_t pages = 0;
  std::vector<caf::typed_response_promise<atom::ok>> waiting;
};

/// A breaker and the wall-clock time of its last state change.
struct watched_breaker {
  store_breaker breaker;
  int64_t since_s = 0;
};

/// The latest of times that a store's threads report.
class latest_time {
public:
  void add(time_point time) noexcept {
    const auto ticks = time.time_since_epoch().count();
    auto known = ticks_.load();
    while (known < ticks && !ticks_.compare_exchange_weak(known, ticks)) {
      // `known` is renewed.
    }
  }

  time_point get() const noexcept { return time_point{duration{ticks_.load()}}; }

private:
  std::atomic<duration::rep> ticks_{0};
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

  /// Answers expired batches.
  void expire();

  storage_status status();

  caf::result<storage_health_ptr> health(caf::timespan timeout);

  void hear_health(const storage_health_ptr& health);

  // -- internal steps ---------------------------------------------------------

  watched_breaker& breaker_of(store_call kind);

  /// @returns nullopt if the call must not reach the store
  std::optional<store_breaker::pass> admit(store_call kind);

  /// Changes a breaker; logs and notifies if its state changed.
  void with_breaker(store_call kind, const std::function<void(store_breaker&)>& change);

  /// The answer to a batch that must not reach the store.
  storage_outcome refused(size_t pages) const;

  /// Submits a batch to the store and keeps its promise until the batch completes or expires.
  /// @param submit Called with the batch's deadline and ticket; returns the store's number.
  template <class Answer, class Submit>
  caf::typed_response_promise<Answer> open(store_call kind, store_breaker::pass pass, size_t pages,
                                           caf::timespan timeout, Submit submit);

  /// The completion callback of a batch; sends the outcome to this actor.
  /// @param moved For each page, whether its objects are in the batch; other ranks write the rest.
  /// @param withheld Trailing pages held back while the store is probed.
  storage_backend::pages_done bring(uint64_t ticket, std::vector<bool> moved, size_t withheld);

  /// Sets the timer for the earliest deadline.
  void set_timer();

  void answer_late(uint64_t ticket, open_call& call);

  void update_stuck();

  storage_actor::pointer self;
  storage_options options;
  std::shared_ptr<storage_backend> store;
  /// When what the store has evicted was last used. Shared with the store, which may outlive this.
  std::shared_ptr<latest_time> lost = std::make_shared<latest_time>();
  uint64_t last_ticket = 0;
  std::map<uint64_t, open_call> calls;
  /// Deadlines and tickets of the calls; and when the timer fires, if it is set.
  std::set<std::pair<time_point, uint64_t>> deadlines;
  std::optional<time_point> timer;
  std::map<uint64_t, late_call> late;
  watched_breaker read_breaker;
  watched_breaker write_breaker;
  /// The store's latest health report, and the requests for the next one with their deadlines.
  storage_health_ptr last_health = std::make_shared<const backend_health>();
  bool is_asking_health = false;
  std::vector<std::pair<time_point, caf::typed_response_promise<storage_health_ptr>>> wondering;
};

/// Front of one L3 store; translates between L2 pages and objects, one per head group. A page
/// exists if all of its objects do; its outcome is that of its first failed object.
///
/// Enforces the deadlines of every store: a timer answers each batch by its deadline. If the store
/// has not finished it by then, it may still touch the pages: they are quarantined, and the answer
/// carries a ticket. Separate breakers for reads and writes decide what reaches the store
/// (`store_breaker`).
storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options,
                                     std::shared_ptr<storage_backend> store);

} // namespace hicache
