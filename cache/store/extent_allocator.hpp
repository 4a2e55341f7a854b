#pragma once

#include <absl/container/btree_map.h>
#include <absl/container/btree_set.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace hicache {

/// Adjacent holes, from the first one's begin to the last one's end.
struct hole_window {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Allocates pieces of a byte range: best fit, the first of equal holes. Adjacent holes are merged.
/// Equal calls give equal pieces. Not thread-safe. Calls cost O(log holes).
class extent_allocator {
public:
  explicit extent_allocator(uint64_t bytes);

  /// @returns where the piece begins; nothing if no hole is large enough
  /// @pre bytes > 0
  std::optional<uint64_t> take(uint64_t bytes);

  /// Takes a whole hole.
  /// @pre a hole begins at `offset`
  void take_hole(uint64_t offset);

  /// @pre the whole piece is taken
  void give_back(uint64_t offset, uint64_t bytes);

  /// The adjacent holes that make one of `bytes` with the fewest taken bytes between. O(holes).
  /// @param is_fixed Whether something immovable lies between two offsets.
  std::optional<hole_window>
  find_window(uint64_t bytes,
              const std::function<bool(uint64_t begin, uint64_t end)>& is_fixed) const;

  uint64_t capacity() const noexcept { return capacity_; }

  /// Bytes in all holes.
  uint64_t free() const noexcept { return free_; }

  /// Length by offset, in order.
  const absl::btree_map<uint64_t, uint64_t>& holes() const noexcept { return holes_; }

private:
  using hole = absl::btree_map<uint64_t, uint64_t>::iterator;

  void remove(hole at);

  void insert(uint64_t offset, uint64_t bytes);

  uint64_t capacity_;
  uint64_t free_ = 0;
  absl::btree_map<uint64_t, uint64_t> holes_;
  /// (length, offset) of each.
  absl::btree_set<std::pair<uint64_t, uint64_t>> by_length_;
};

} // namespace hicache
