#pragma once

#include "backends/folder_table.hpp"
#include "hicache/ids.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace hicache {

/// Objects of a store, and which of them to evict to stay within a bound: the least recently used
/// one without a stored child. Not thread-safe.
class bounded_objects {
public:
  /// An object to remove from the store. It is not counted any more.
  struct evicted : listed_object {
    /// The time of its last use.
    int64_t used = 0;
  };

  struct room {
    bool is_there = false;
    std::vector<bounded_objects::evicted> evicted;
  };

  explicit bounded_objects(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  /// What is beyond the bound is evicted by `shrink`, or by the next write.
  void set_bound(uint64_t max_bytes) { max_bytes_ = max_bytes; }

  /// @returns the objects that are evicted
  std::vector<evicted> shrink() { return evict_for(0); }

  /// Uses from now on have this time or a later one. They are in order without it, too.
  void set_time(int64_t time) { time_ = std::max(time_, time); }

  /// Makes room for an object, counts it, and keeps it until `end_write`, which must follow if the
  /// room is there.
  room begin_write(const page_key& key, const page_key& parent, uint64_t bytes) {
    auto made = room{};
    if (bytes > max_bytes_)
      return made;
    const auto has_parent = parent != page_key{} && parent != key;
    begin(key);
    if (has_parent)
      objects_.hold(parent);
    const auto added = bytes - objects_.bytes_of(key);
    made.evicted = evict_for(added);
    made.is_there = objects_.bytes() + added <= max_bytes_;
    if (made.is_there)
      objects_.add(key, parent, bytes, ++time_);
    if (has_parent)
      objects_.release(parent);
    if (!made.is_there)
      end(key);
    return made;
  }

  /// @param is_stored Whether the write succeeded.
  /// @returns false if the object was removed meanwhile: remove it from the store again
  bool end_write(const page_key& key, bool is_stored) {
    if (!is_stored)
      objects_.remove(key, ++time_);
    const auto is_kept = objects_.contains(key);
    end(key);
    return !is_stored || is_kept;
  }

  /// @returns whether the object is known
  bool use(const page_key& key) {
    objects_.use(key, ++time_);
    return objects_.contains(key);
  }

  /// The store lacks the object, unless it is being written.
  void miss(const page_key& key) {
    if (!writes_.contains(key))
      objects_.remove(key, ++time_);
  }

  /// The object is removed from the store.
  void remove(const page_key& key) { objects_.remove(key, ++time_); }

  /// As folder_table::list.
  result<object_list> list(const std::string& from) const { return objects_.list(from); }

  uint64_t size() const noexcept { return objects_.size(); }

  uint64_t bytes() const noexcept { return objects_.bytes(); }

  uint64_t evictions() const noexcept { return evictions_; }

private:
  std::vector<evicted> evict_for(uint64_t added) {
    auto gone = std::vector<evicted>{};
    while (objects_.bytes() + added > max_bytes_) {
      const auto oldest = objects_.oldest();
      if (!oldest)
        break;
      gone.push_back({{*oldest, objects_.parent_of(*oldest), objects_.bytes_of(*oldest)},
                      objects_.used(*oldest)});
      objects_.remove(*oldest, ++time_);
    }
    evictions_ += gone.size();
    return gone;
  }

  void begin(const page_key& key) {
    objects_.hold(key);
    ++writes_[key];
  }

  void end(const page_key& key) {
    objects_.release(key);
    const auto at = writes_.find(key);
    if (--at->second == 0)
      writes_.erase(at);
  }

  uint64_t max_bytes_;
  folder_table objects_;
  int64_t time_ = 0;
  /// Writes of an object that have begun and not ended.
  std::unordered_map<page_key, size_t> writes_;
  uint64_t evictions_ = 0;
};

} // namespace hicache
