#pragma once

#include "hicache/ids.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>

namespace hicache {

/// Counts the uses of objects within a window of recent ones, in bounded memory: of the last
/// `window` to 2 * `window` different keys. A key that is not used within it starts again at one.
class use_history {
public:
  explicit use_history(size_t window) : window_(window) {}

  /// Counts a use.
  /// @returns uses of the key within the window, this one included
  uint32_t use(const page_key& key);

private:
  using counts = absl::flat_hash_map<page_key, uint32_t>;

  const size_t window_;
  /// Two generations: a full younger one replaces the older.
  counts young_;
  counts old_;
};

} // namespace hicache
