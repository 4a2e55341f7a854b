#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Location of an object as returned by a look-up, passed to a later read so that the store need
/// not look it up again. Opaque to all but the store that made it; cheap to copy. It may be stale:
/// the store verifies what it reads there, and repeats the look-up if necessary.
struct store_place {
  /// The store's own answer, kept alive by its places. Null: no known place.
  std::shared_ptr<const void> answer;
  /// Index of the key in that answer.
  uint32_t position = 0;
  /// Of a store made of stores: which of them, as in backend_health::tiers.
  uint32_t tier = 0;
};

/// Names of the stores that a store is made of, in its order.
using tier_names = std::shared_ptr<const std::vector<std::string>>;

/// One object to read. Its bytes fill the parts in order; their total length must be the object's.
struct page_read {
  page_key key;
  std::vector<std::span<std::byte>> parts;
  /// From a look-up in this store, or empty.
  store_place place = {};
  /// As in page_write, for stores that write what they have read to a faster place.
  page_key parent = {};
  uint64_t tenant = 0;
  uint64_t fingerprint = 0;
};

/// One object to store. Its bytes are the concatenation of the parts.
struct page_write {
  page_key key;
  /// The preceding object of the prefix; all zero for a first page. A store evicts no object before
  /// those that name it as their parent.
  page_key parent;
  std::vector<std::span<const std::byte>> parts;
  /// The tenant whose quota it counts against, if the store has quotas; 0 for requests without a
  /// salt.
  uint64_t tenant = 0;
  /// `fingerprint_of` its namespace; 0: the namespace that the store was opened for.
  uint64_t fingerprint = 0;
};

/// The objects of one batch. Thousands of names and parts are made on demand on the store's thread.
template <class T>
class store_batch {
public:
  /// An existing list.
  store_batch(std::vector<T> list)
    : size_(list.size()), make_([list = std::move(list)]() mutable { return std::move(list); }) {}

  /// @param make Makes `size` objects, on any thread. What it refers to must outlive the batch.
  store_batch(size_t size, std::function<std::vector<T>()> make)
    : size_(size), make_(std::move(make)) {}

  size_t size() const noexcept { return size_; }

  /// Makes the list. Call it once, but not on the thread that submitted the batch.
  std::vector<T> list() const { return make_(); }

private:
  size_t size_;
  std::function<std::vector<T>()> make_;
};

/// An object that a store drops to make room for others.
struct evicted_object {
  page_key key;
  /// As in page_write; all zero if the store does not know it.
  page_key parent;
  /// Valid during the call that has it; empty if they are not wanted, or cannot be read.
  std::span<const std::byte> bytes;
  /// When it was last used, or else written, on the store's clock; the clock's beginning if the
  /// store does not know.
  time_point used = {};
  /// As in page_write; 0 if the store does not know it.
  uint64_t fingerprint = 0;
  /// As in page_write; 0 if the store does not know it.
  uint64_t tenant = 0;
};

/// Counters since a store was opened. Each object of a read counts once: as hit, miss, corrupt or
/// error.
struct backend_counters {
  uint64_t hits = 0;
  uint64_t misses = 0;
  /// Objects that failed verification.
  uint64_t corrupt = 0;
  /// Objects of a read or write that failed for any other reason, including expired deadlines.
  uint64_t errors = 0;
  /// Objects evicted to make room.
  uint64_t evicted = 0;

  template <class T>
  void count_get(const result<T>& page) noexcept {
    if (page)
      ++hits;
    else if (page.error().code == ec::not_found)
      ++misses;
    else if (page.error().code == ec::corrupt_page)
      ++corrupt;
    else
      ++errors;
  }

  void count_set(const result<void>& page) noexcept {
    if (!page)
      ++errors;
  }

  backend_counters& operator+=(const backend_counters& other) noexcept {
    hits += other.hits;
    misses += other.misses;
    corrupt += other.corrupt;
    errors += other.errors;
    evicted += other.evicted;
    return *this;
  }

  friend bool operator==(const backend_counters&, const backend_counters&) = default;
};

struct tier_health;

struct backend_health {
  /// Whether the store is usable now.
  bool ok = true;
  /// Why not, or further details. May be empty.
  std::string detail;
  /// Objects that this process accounts for, and their bytes in the store.
  uint64_t objects = 0;
  uint64_t bytes = 0;
  /// Bound on `bytes`; 0 if there is none.
  uint64_t capacity_bytes = 0;
  backend_counters counters;
  /// Of a store made of stores: theirs, in its order.
  std::vector<tier_health> tiers;
};

struct tier_health {
  /// The store's name.
  std::string name;
  backend_health health;
  /// Bytes of the objects that it was given and has stored.
  uint64_t written_bytes = 0;
  /// Objects that it was not given, because they were over its budget of bytes.
  uint64_t over_budget = 0;
};

/// An object in a store's list.
struct listed_object {
  page_key key;
  /// As in page_write; all zero if the store does not know it.
  page_key parent;
  /// Its length.
  uint64_t bytes = 0;
  /// As in page_write; 0 if the store does not know it.
  uint64_t fingerprint = 0;

  friend bool operator==(const listed_object&, const listed_object&) = default;
};

/// A part of the list of a store's objects.
struct object_list {
  std::vector<listed_object> objects;
  /// Where the next part begins; empty after the last one.
  std::string next;
};

/// Properties of a store. Generic code depends on these, never on the store's name.
struct store_capabilities {
  /// Objects survive a restart of the process.
  bool survives_restarts = false;
  /// Other processes see the objects that this process writes.
  bool is_shared = false;
  /// Write batches may be pipelined: the store makes no object visible before its parent, and fails
  /// an object whose parent failed in an earlier batch. Otherwise a batch must be done before a
  /// batch that continues it is submitted.
  bool orders_writes = false;
  /// `backend_health` reports the objects and bytes that this process accounts for.
  bool tells_occupancy = false;
  /// Objects may be of several namespaces: page_write::fingerprint counts, and the store lists its
  /// objects with theirs.
  bool keeps_namespaces = false;
  /// What is read may differ from what was written, by quantisation.
  bool is_lossy = false;
  /// Object size with the best throughput; 0 if it does not matter.
  uint64_t preferred_object_bytes = 0;
  /// Objects moved at once; larger batches take proportionally longer. 0 if it does not matter.
  size_t preferred_batch = 0;

  friend bool operator==(const store_capabilities&, const store_capabilities&) = default;
};

/// An L3 store (docs/backends.md). Every call takes a batch, returns at once, and answers later
/// through `done`, which is called exactly once, from any thread, possibly before the call returns.
/// `done` receives one result per object, in order; it must not block or destroy the store. Any
/// number of threads may call concurrently. Nothing throws.
///
/// The memory of the parts must stay valid until `done`, after which the store does not touch it
/// any more. If it can, a store answers before the deadline (steady clock of the store), with
/// deadline_exceeded for unfinished objects. If it does not, the caller stops waiting (`expire`)
/// and keeps the memory out of use until `done` is called.
///
/// Errors of an object: not_found; corrupt_page (it failed verification and is gone);
/// invalid_argument (the parts do not have the object's length); store_full; deadline_exceeded;
/// io_failure; peer_unreachable; limit_reached (too many batches are waiting); stopping (the store
/// is closed).
class storage_backend {
public:
  using lookup_done = std::function<void(std::vector<result<store_place>>)>;
  using pages_done = std::function<void(std::vector<result<void>>)>;
  using read_progress = std::function<void(size_t first, std::span<const result<void>> outcomes)>;
  using list_done = std::function<void(result<object_list>)>;
  using eviction_watch = std::function<void(std::span<const evicted_object>)>;
  using loss_watch = std::function<void(time_point used)>;
  using health_done = std::function<void(backend_health)>;

  /// Numbers the batches of a store; not 0.
  using batch_number = uint64_t;

  /// State of a batch whose deadline has passed.
  enum class expiry {
    /// Not started and now cancelled; this value replaces its `done`.
    withdrawn,
    /// In progress: `done` will be called once the parts are not touched any more.
    running,
    /// `done` has been called or is about to be.
    finished,
  };

  storage_backend() = default;
  storage_backend(const storage_backend&) = delete;
  storage_backend& operator=(const storage_backend&) = delete;

  /// Closes with a grace period of the store's choice.
  virtual ~storage_backend() = default;

  /// The name by which users select it: "file".
  virtual std::string name() const = 0;

  /// Constant over the store's lifetime.
  virtual store_capabilities capabilities() const = 0;

  /// Of a store made of stores: the names that `store_place::tier` of the next look-up refers to.
  /// Null for all others.
  virtual tier_names tiers() const { return nullptr; }

  /// Announces the memory that parts will lie in, once, before the first batch. It must outlive the
  /// store.
  /// @returns why it cannot be used; the store also works without it
  virtual result<void> attach_memory(std::span<const std::span<std::byte>> regions);

  /// Has the store say from now on which objects it evicts, and what they were. It calls one watch,
  /// the last one; an empty one ends that.
  /// @param watch Called on a thread of the store, which waits for it; must not wait for the store.
  /// @param wants_bytes Whether the objects' bytes are to be told, which may cost reads.
  /// @returns false if the store cannot tell, or not of all objects: then the others may be told
  /// without bytes
  virtual bool watch_evictions(eviction_watch watch, bool wants_bytes);

  /// Has the store say from now on how recently the objects were used that it evicts and that are
  /// gone then: the latest `evicted_object::used` of each eviction. Unlike watch_evictions it costs
  /// no reads.
  /// @param watch As in watch_evictions.
  /// @returns false if the store cannot tell
  virtual bool watch_losses(loss_watch watch);

  /// Looks up which objects the store holds, and where. not_found for an absent object, and for all
  /// objects if the store cannot be reached.
  virtual batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done)
    = 0;

  /// Reads objects. The parts of one that failed hold unspecified bytes.
  /// @param progress May be empty. Called before `done`, any number of times, with the outcomes of
  /// objects from number `first` on, whose parts the store does not touch any more; `done` repeats
  /// them. A store need not call it.
  virtual batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                            read_progress progress)
    = 0;

  /// Stores objects, parents before children. An existing key succeeds without a transfer; callers
  /// do not look it up first. An object is visible whole or not at all, and never if its write
  /// failed.
  virtual batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done)
    = 0;

  /// Stores objects that a slower store had and that are in use: as `write`. A store whose batches
  /// wait begins with these before other writes; one that makes no difference need not override it.
  virtual batch_number promote(store_batch<page_write> pages, time_point deadline, pages_done done);

  /// Removes objects. A key that does not exist succeeds.
  virtual batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) = 0;

  /// Lists the objects of all namespaces, part by part, in no order. What is written or removed
  /// meanwhile may be missing or listed, and an object may be listed twice.
  /// @param from Empty for the first part, then object_list::next of the last one.
  /// @returns 0, and has called `done` with `unsupported`, if the store cannot list its objects
  virtual batch_number list(std::string from, time_point deadline, list_done done);

  /// Reports the store's health.
  virtual void health(health_done done) = 0;

  /// Ends the wait for a batch whose deadline has passed. Never blocks.
  virtual expiry expire(batch_number batch) = 0;

  /// Ends batches not yet started with `stopping`, waits for the others, and accepts no more.
  /// @returns false if some batches were still in progress after `grace`. They are abandoned and
  /// never answered: the memory they may touch, and everything the store was made with, must never
  /// be destroyed. The store itself may be.
  virtual bool close(std::chrono::nanoseconds grace) = 0;
};

inline result<void> storage_backend::attach_memory(std::span<const std::span<std::byte>>) {
  return {};
}

inline bool storage_backend::watch_evictions(eviction_watch, bool) {
  return false;
}

inline bool storage_backend::watch_losses(loss_watch) {
  return false;
}

inline storage_backend::batch_number
storage_backend::promote(store_batch<page_write> pages, time_point deadline, pages_done done) {
  return write(std::move(pages), deadline, std::move(done));
}

inline storage_backend::batch_number storage_backend::list(std::string, time_point,
                                                           list_done done) {
  done(fail(ec::unsupported, name() + " cannot list its objects"));
  return 0;
}

/// Lets a program that embeds a rank wrap the configured store: to count, to throttle, or, in
/// tests, to fail. Called with each store that is opened; must not return null. The result must
/// keep the contract of storage_backend.
using backend_wrapper
  = std::function<std::unique_ptr<storage_backend>(std::unique_ptr<storage_backend>)>;

/// Total bytes of an object's parts.
template <class Byte>
uint64_t total_bytes(const std::vector<std::span<Byte>>& parts) noexcept {
  auto total = uint64_t{0};
  for (const auto& part : parts)
    total += part.size();
  return total;
}

/// Concatenates an object's parts at `target`.
template <class Byte>
void gather(const std::vector<std::span<Byte>>& parts, std::byte* target) noexcept {
  for (const auto& part : parts)
    target = std::copy(part.begin(), part.end(), target);
}

/// Copies an object into its parts.
inline void scatter(const std::byte* source, std::span<const std::span<std::byte>> parts) noexcept {
  for (const auto& part : parts) {
    std::copy_n(source, part.size(), part.begin());
    source += part.size();
  }
}

} // namespace hicache
