#pragma once

#include "base/check.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

namespace hicache {

/// Pages ordered by last use, with their sizes in bytes. Not thread-safe.
template <class Value>
class lru_table {
public:
  struct entry {
    page_key key;
    uint64_t bytes = 0;
    Value value;
  };

  /// Makes the page the most recently used one.
  /// @returns the page's value, or null if it is not in the table.
  Value* touch(const page_key& key) {
    const auto found = positions_.find(key);
    if (found == positions_.end())
      return nullptr;
    order_.splice(order_.end(), order_, found->second);
    return &found->second->value;
  }

  bool contains(const page_key& key) const { return positions_.contains(key); }

  /// Adds a page as the most recently used one; replaces an entry of the same key.
  void insert(const page_key& key, uint64_t bytes, Value value) {
    erase(key);
    positions_.emplace(key, order_.insert(order_.end(), {key, bytes, std::move(value)}));
    bytes_ += bytes;
  }

  void erase(const page_key& key) {
    const auto found = positions_.find(key);
    if (found == positions_.end())
      return;
    bytes_ -= found->second->bytes;
    order_.erase(found->second);
    positions_.erase(found);
  }

  /// Removes the least recently used page.
  /// @pre size() > 0
  entry pop_oldest() {
    HICACHE_CHECK(!order_.empty());
    auto oldest = order_.front();
    erase(oldest.key);
    return oldest;
  }

  /// The entries, oldest first.
  const std::list<entry>& entries() const noexcept { return order_; }

  uint64_t size() const noexcept { return order_.size(); }

  uint64_t bytes() const noexcept { return bytes_; }

private:
  /// Oldest first.
  std::list<entry> order_;
  std::unordered_map<page_key, typename std::list<entry>::iterator> positions_;
  uint64_t bytes_ = 0;
};

} // namespace hicache
