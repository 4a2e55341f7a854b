#pragma once

#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace hicache {

/// Readers that wait until the index learns of another replica of one of their pages. Pure; not
/// thread-safe.
/// Calls cost O(log n) per page, whatever the readers name.
class replica_waits {
public:
  /// @returns the number of the wait, never used before
  uint64_t add(std::vector<page_key> keys);

  /// Ends the waits for this page.
  /// @returns their numbers, in order
  std::vector<uint64_t> take(const page_key& key);

  /// Ends a wait; no effect if it has ended.
  void remove(uint64_t number);

  /// Pages waited for; one counts once per wait.
  size_t size() const noexcept { return by_key_.size(); }

private:
  uint64_t last_ = 0;
  std::map<uint64_t, std::vector<page_key>> keys_;
  std::set<std::pair<page_key, uint64_t>> by_key_;
};

} // namespace hicache
