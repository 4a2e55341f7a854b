#pragma once

#include "backends/bounded_objects.hpp"
#include "base/units.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// Accounts of a store on a server of others: counters, and if there is a bound the objects that
/// this process wrote there. Any thread.
class written_objects {
public:
  /// Objects to remove from the server.
  using evicted_objects = std::vector<bounded_objects::evicted>;

  /// @param max_bytes 0: the server alone decides what it keeps.
  explicit written_objects(uint64_t max_bytes) : max_bytes_(max_bytes) {
    if (max_bytes > 0)
      objects_.emplace(max_bytes);
  }

  bool is_bounded() const noexcept { return max_bytes_ > 0; }

  void count_reads(std::span<const page_read> pages, std::span<const result<uint64_t>> answers) {
    const auto lock = std::scoped_lock{mutex_};
    for (auto i = size_t{0}; i < pages.size(); ++i) {
      counters_.count_get(answers[i]);
      if (objects_ && answers[i])
        objects_->use(pages[i].key);
      else if (objects_ && answers[i].error().code == ec::not_found)
        objects_->miss(pages[i].key);
    }
  }

  /// Outcomes of a batch of writes, counted.
  /// @param write Gets them, to replace those that it knows; not called if it `is_late`.
  template <class Write>
  std::vector<result<void>> count_writes(size_t pages, bool is_late, Write write) {
    auto answers = std::vector<result<void>>(pages, fail(ec::deadline_exceeded));
    if (!is_late)
      write(answers);
    const auto lock = std::scoped_lock{mutex_};
    for (const auto& answer : answers)
      counters_.count_set(answer);
    return answers;
  }

  /// A write found the object there, or may find it there because this process wrote it.
  /// @returns whether it is counted
  bool use(const page_key& key) {
    const auto lock = std::scoped_lock{mutex_};
    return objects_ && objects_->use(key);
  }

  /// Counts an object of so many bytes, which the server lacks, until `end_write`.
  /// @returns what to remove for it
  std::pair<result<void>, evicted_objects> begin_write(const page_write& page, uint64_t bytes) {
    const auto lock = std::scoped_lock{mutex_};
    if (!objects_)
      return {};
    objects_->miss(page.key);
    auto room = objects_->begin_write(page.key, page.parent, bytes);
    auto has_room = result<void>{};
    if (!room.is_there)
      has_room = fail(ec::store_full, "there is no room for an object of " + format_bytes(bytes)
                                        + " within max_bytes of " + format_bytes(max_bytes_));
    return {std::move(has_room), std::move(room.evicted)};
  }

  /// Must follow if begin_write found room.
  /// @returns false if the object was removed meanwhile: remove it from the server again
  bool end_write(const page_key& key, bool is_stored) {
    const auto lock = std::scoped_lock{mutex_};
    return !objects_ || objects_->end_write(key, is_stored);
  }

  /// The object is removed from the server.
  void remove(const page_key& key) {
    const auto lock = std::scoped_lock{mutex_};
    if (objects_)
      objects_->remove(key);
  }

  /// As storage_backend::watch_evictions, without bytes.
  /// @returns false: the server and other processes remove objects, too
  bool watch_evictions(storage_backend::eviction_watch watch) {
    const auto lock = std::scoped_lock{mutex_};
    watch_ = std::move(watch);
    return false;
  }

  /// What `begin_write` has evicted is removed from the server.
  void tell_evicted(std::span<const page_key> keys) {
    auto watch = storage_backend::eviction_watch{};
    {
      const auto lock = std::scoped_lock{mutex_};
      watch = watch_;
    }
    if (!watch || keys.empty())
      return;
    auto objects = std::vector<evicted_object>{};
    for (const auto& key : keys)
      objects.push_back({key, {}, {}});
    watch(objects);
  }

  /// Fills in what it knows.
  void tell(backend_health& health) {
    const auto lock = std::scoped_lock{mutex_};
    health.capacity_bytes = max_bytes_;
    health.counters = counters_;
    if (!objects_)
      return;
    health.objects = objects_->size();
    health.bytes = objects_->bytes();
    health.counters.evicted = objects_->evictions();
  }

private:
  const uint64_t max_bytes_;
  std::mutex mutex_; // Guards what follows.
  std::optional<bounded_objects> objects_;
  storage_backend::eviction_watch watch_;
  backend_counters counters_;
};

} // namespace hicache
