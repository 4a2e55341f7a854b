#pragma once

#include "base/clock.hpp"
#include "base/error.hpp"
#include "messages/ids.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Where to put one page. The object's bytes are the concatenation of the parts, whose total length
/// must be the object's.
struct page_read {
  page_key key;
  std::vector<std::span<std::byte>> parts;
};

/// One page to keep. The object's bytes are the concatenation of the parts.
struct page_write {
  page_key key;
  /// The page before it in its prefix; all zero for a first page. A store may use it to evict no
  /// page before its children.
  page_key parent;
  std::vector<std::span<const std::byte>> parts;
  /// Whose quota it counts for, where a store has quotas; 0 is everybody without a salt.
  uint64_t tenant = 0;
};

/// What a store counted since it was opened. Every page of a get counts once in hits, misses,
/// corrupt or errors.
struct backend_counters {
  uint64_t hits = 0;
  uint64_t misses = 0;
  /// Pages that did not verify.
  uint64_t corrupt = 0;
  /// Pages of a get or set that failed for any other reason, passed deadlines included.
  uint64_t errors = 0;
  /// Pages dropped to make room.
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
  /// Pages that this process accounts for, and the bytes they take there.
  uint64_t objects = 0;
  uint64_t bytes = 0;
  /// Bound on `bytes`; 0 if there is none.
  uint64_t capacity_bytes = 0;
  backend_counters counters;
};

/// An L3 store. Calls block and may come from any thread, several at a time; storage_queue makes
/// them asynchronous. A call carries a batch and answers per page, in order. Nothing throws; after
/// a call has returned, the store touches no part any more. Deadlines are looked at between pages,
/// on the clock that the store was opened with.
class storage_backend {
public:
  storage_backend() = default;
  storage_backend(const storage_backend&) = delete;
  storage_backend& operator=(const storage_backend&) = delete;
  virtual ~storage_backend() = default;

  /// The name that users choose it by: "file".
  virtual std::string name() const = 0;

  /// Which of the pages the store holds. A store that cannot be reached, or not before the
  /// deadline, answers false.
  virtual std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) = 0;

  /// Reads pages. Per page: not_found, corrupt_page (it did not verify and is gone),
  /// invalid_argument (the parts have not the object's length), deadline_exceeded, io_failure or
  /// peer_unreachable. The parts of a failed page hold unspecified bytes.
  virtual std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) = 0;

  /// Keeps pages. A key that exists succeeds and moves nothing. A page is visible whole or not at
  /// all. Per page: store_full, deadline_exceeded (nothing was changed), io_failure or
  /// peer_unreachable.
  virtual std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) = 0;

  /// Forgets pages. A key that does not exist succeeds. Errors as for set.
  virtual std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) = 0;

  virtual backend_health health() = 0;
};

/// How a program that embeds a rank puts a store of its own around the one that the settings name:
/// to count, to throttle, or, in a test, to fail. Called with each backend that is opened; must
/// not return null. What it returns keeps the contract of storage_backend.
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
