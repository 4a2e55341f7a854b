#pragma once

#include "base/check.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace hicache {

/// A map whose values are part of the cache's digest; keeps the sum of their digests. Values change
/// only through an edit, whose destructor updates the sum.
/// @tparam Map A map of the standard library or of Abseil.
template <class Map>
class digested_map {
public:
  using key_type = typename Map::key_type;
  using value_type = typename Map::mapped_type;
  using digest_function = uint64_t (*)(const value_type&) noexcept;

  /// A change of one value. At most one is open at a time, and none during insertions and removals.
  class edit {
  public:
    edit(digested_map& map, value_type& value) : map_(map), value_(value) {
      HICACHE_CHECK(!std::exchange(map_.is_edited_, true));
      map_.sum_ -= map_.digest_(value_);
    }

    edit(const edit&) = delete;

    edit& operator=(const edit&) = delete;

    ~edit() {
      map_.sum_ += map_.digest_(value_);
      map_.is_edited_ = false;
    }

    value_type& operator*() const noexcept { return value_; }

    value_type* operator->() const noexcept { return &value_; }

  private:
    digested_map& map_;
    value_type& value_;
  };

  explicit digested_map(digest_function of_value) : digest_(of_value) {}

  digested_map(const digested_map&) = delete;

  digested_map& operator=(const digested_map&) = delete;

  /// @pre the key is new
  edit insert(const key_type& key, value_type value) {
    HICACHE_CHECK(!is_edited_);
    const auto [entry, is_new] = map_.try_emplace(key, std::move(value));
    HICACHE_CHECK(is_new);
    sum_ += digest_(entry->second);
    return {*this, entry->second};
  }

  /// @pre the key exists
  edit change(const key_type& key) {
    const auto entry = map_.find(key);
    HICACHE_CHECK(entry != map_.end());
    return {*this, entry->second};
  }

  /// Removes a value. @pre the key exists
  value_type take(const key_type& key) {
    HICACHE_CHECK(!is_edited_);
    const auto entry = map_.find(key);
    HICACHE_CHECK(entry != map_.end());
    auto value = std::move(entry->second);
    sum_ -= digest_(value);
    map_.erase(entry);
    return value;
  }

  /// The value, or null.
  const value_type* find(const key_type& key) const {
    const auto entry = map_.find(key);
    return entry == map_.end() ? nullptr : &entry->second;
  }

  /// @pre the key exists
  const value_type& at(const key_type& key) const {
    const auto* value = find(key);
    HICACHE_CHECK(value != nullptr);
    return *value;
  }

  auto begin() const { return map_.begin(); }

  auto end() const { return map_.end(); }

  size_t size() const noexcept { return map_.size(); }

  bool empty() const noexcept { return map_.empty(); }

  /// The sum of the values' digests.
  uint64_t digest() const noexcept { return sum_; }

  /// Aborts if the sum is wrong.
  void check_digest() const {
    auto sum = uint64_t{0};
    for (const auto& [key, value] : map_)
      sum += digest_(value);
    HICACHE_CHECK(!is_edited_ && sum == sum_);
  }

private:
  Map map_;
  digest_function digest_;
  uint64_t sum_ = 0;
  bool is_edited_ = false;
};

} // namespace hicache
