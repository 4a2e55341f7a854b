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

/// Where a store said that an object is: what a look-up hands to a later read, so that the store
/// need not look again. Opaque to everyone but the store that gave it, and cheap to copy. It says
/// what was true at the look-up: the store verifies what it reads there, and looks again if need
/// be.
struct store_place {
  /// The store's own answer, kept for as long as one of its places. Null: the store knows no place.
  std::shared_ptr<const void> answer;
  /// Which of the keys of that answer.
  uint32_t position = 0;
};

/// One object to read. Its bytes go to the parts, one behind the other; their total length must be
/// the object's.
struct page_read {
  page_key key;
  std::vector<std::span<std::byte>> parts;
  /// From a look-up of this store, or empty.
  store_place place = {};
};

/// One object to store. Its bytes are the concatenation of the parts.
struct page_write {
  page_key key;
  /// The object before it in its prefix; all zero for a first page. A store evicts no object before
  /// those that name it as their parent.
  page_key parent;
  std::vector<std::span<const std::byte>> parts;
  /// Whose quota it counts for, where a store has quotas; 0 is everybody without a salt.
  uint64_t tenant = 0;
};

/// The objects of one batch. A batch has thousands of names and pieces of memory; they are made
/// when the store asks for them, on the store's thread.
template <class T>
class store_batch {
public:
  /// A list that is there already.
  store_batch(std::vector<T> list)
    : size_(list.size()), make_([list = std::move(list)]() mutable { return std::move(list); }) {}

  /// @param make Makes `size` objects. Any thread; what it refers to must outlive the batch.
  store_batch(size_t size, std::function<std::vector<T>()> make)
    : size_(size), make_(std::move(make)) {}

  size_t size() const noexcept { return size_; }

  /// Makes the list. Call it once, and not on the thread that submitted the batch.
  std::vector<T> list() const { return make_(); }

private:
  size_t size_;
  std::function<std::vector<T>()> make_;
};

/// What a store counted since it was opened. Every object of a read counts once in hits, misses,
/// corrupt or errors.
struct backend_counters {
  uint64_t hits = 0;
  uint64_t misses = 0;
  /// Objects that did not verify.
  uint64_t corrupt = 0;
  /// Objects of a read or write that failed for any other reason, passed deadlines included.
  uint64_t errors = 0;
  /// Objects dropped to make room.
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

struct backend_health {
  /// Whether the store can be used now.
  bool ok = true;
  /// Why not, or what the store wants to add. May be empty.
  std::string detail;
  /// Objects that this process accounts for, and the bytes they take there.
  uint64_t objects = 0;
  uint64_t bytes = 0;
  /// Bound on `bytes`; 0 if there is none.
  uint64_t capacity_bytes = 0;
  backend_counters counters;
};

/// What a store is like. Generic code asks this and never the store's name.
struct store_capabilities {
  /// Objects are there after the process has ended and begun again.
  bool survives_restarts = false;
  /// Other processes see the objects that this one writes.
  bool is_shared = false;
  /// Reads take no processor time of the process that holds the object.
  bool is_one_sided = false;
  /// Transfers are faster to and from memory that attach_memory() named.
  bool wants_registered_memory = false;
  /// Write batches may follow each other without waiting: the store makes no object visible before
  /// its parent, and fails an object whose parent failed in an earlier batch. Without it a batch
  /// must be done before one that continues it is submitted.
  bool orders_writes = false;
  /// `backend_health` has the objects and bytes that this process accounts for.
  bool tells_occupancy = false;
  /// What the parts of an object should be aligned to, in bytes; 1 if it does not matter.
  uint64_t alignment = 1;
  /// Objects of about this size are moved best; 0 if it does not matter.
  uint64_t preferred_object_bytes = 0;
  /// Objects that a store moves at once: larger batches take it so many times as long. 0 if it does
  /// not matter.
  size_t preferred_batch = 0;

  friend bool operator==(const store_capabilities&, const store_capabilities&) = default;
};

/// An L3 store (docs/backends.md). Every call carries a batch, returns at once, and answers later
/// through `done`, which is called exactly once, from any thread, possibly before the call returns.
/// `done` gives one result per object, in order, must not block, and must not destroy the store.
/// Any thread may call, several at a time. Nothing throws.
///
/// `done` also means that the store does not touch the parts any more: their memory must stay valid
/// until then. A store answers before the deadline if it can (steady clock of the store), with
/// deadline_exceeded for what it has not done. If it does not, its user stops waiting (`expire`)
/// and keeps the memory out of use until `done` is called.
///
/// Errors of an object: not_found; corrupt_page (it did not verify and is gone); invalid_argument
/// (the parts have not the object's length); store_full; deadline_exceeded; io_failure;
/// peer_unreachable; limit_reached (too many batches wait); stopping (the store is closed).
class storage_backend {
public:
  using lookup_done = std::function<void(std::vector<result<store_place>>)>;
  using pages_done = std::function<void(std::vector<result<void>>)>;
  using read_progress = std::function<void(size_t first, std::span<const result<void>> outcomes)>;
  using health_done = std::function<void(backend_health)>;

  /// Numbers the batches of a store; never 0.
  using batch_number = uint64_t;

  /// What became of a batch whose deadline has passed.
  enum class expiry {
    /// It had not begun. It is not carried out, and this value stands for its `done`.
    withdrawn,
    /// It is under way: `done` will be called when the parts are not touched any more.
    running,
    /// `done` was called, or is about to be.
    finished,
  };

  storage_backend() = default;
  storage_backend(const storage_backend&) = delete;
  storage_backend& operator=(const storage_backend&) = delete;

  /// Closes with some grace of the store's choice.
  virtual ~storage_backend() = default;

  /// The name that users choose it by: "file".
  virtual std::string name() const = 0;

  /// The same for the store's whole life.
  virtual store_capabilities capabilities() const = 0;

  /// Names memory that parts will lie in, once, before the first batch. It must outlive the store.
  /// @returns why it cannot be used; the store works without it, too
  virtual result<void> attach_memory(std::span<const std::span<std::byte>> regions);

  /// Which objects the store holds, and where. not_found for an object that it lacks, and for all
  /// if it cannot be reached.
  virtual batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done)
    = 0;

  /// Reads objects. The parts of one that failed hold unspecified bytes.
  /// @param progress May be empty. Called before `done`, perhaps several times, with the outcomes
  /// of objects from number `first` on, whose parts the store does not touch any more; `done`
  /// repeats them. A store may leave it out.
  virtual batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                            read_progress progress)
    = 0;

  /// Stores objects, parents before children. A key that exists succeeds and moves nothing; nobody
  /// looks for it first. An object is visible whole or not at all, and never if its write failed.
  virtual batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done)
    = 0;

  /// Forgets objects. A key that does not exist succeeds.
  virtual batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) = 0;

  /// How the store is.
  virtual void health(health_done done) = 0;

  /// The deadline of a batch has passed and nobody waits for it any more. Never blocks.
  virtual expiry expire(batch_number batch) = 0;

  /// Answers batches that have not begun with `stopping` and waits for the others. Takes none
  /// afterwards.
  /// @returns false if some were still under way when `grace` had passed. Then they are left behind
  /// for good and not answered any more: what they may touch, and all that the store was made with,
  /// must never be destroyed. The store itself may.
  virtual bool close(std::chrono::nanoseconds grace) = 0;
};

inline result<void> storage_backend::attach_memory(std::span<const std::span<std::byte>>) {
  return {};
}

/// How a program that embeds a rank puts a store of its own around the one that the settings name:
/// to count, to throttle, or, in a test, to fail. Called with each store that is opened; must not
/// return null. What it returns keeps the contract of storage_backend.
using backend_wrapper
  = std::function<std::unique_ptr<storage_backend>(std::unique_ptr<storage_backend>)>;

/// Bytes of an object in parts.
template <class Byte>
uint64_t total_bytes(const std::vector<std::span<Byte>>& parts) noexcept {
  auto total = uint64_t{0};
  for (const auto& part : parts)
    total += part.size();
  return total;
}

/// Copies an object's parts, one behind the other, to `target`.
template <class Byte>
void gather(const std::vector<std::span<Byte>>& parts, std::byte* target) noexcept {
  for (const auto& part : parts)
    target = std::copy(part.begin(), part.end(), target);
}

/// Copies an object to its parts.
inline void scatter(const std::byte* source, std::span<const std::span<std::byte>> parts) noexcept {
  for (const auto& part : parts) {
    std::copy_n(source, part.size(), part.begin());
    source += part.size();
  }
}

} // namespace hicache
