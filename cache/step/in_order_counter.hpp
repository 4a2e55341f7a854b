#pragma once

#include "base/check.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <set>

namespace hicache {

/// Counts finished operations without gaps, although they finish in any order. Ids start at 1. A
/// value; single-threaded.
class in_order_counter {
public:
  /// Records that an operation finished; each finishes once.
  void complete(operation_id id) {
    HICACHE_CHECK(id > done_ && !early_.contains(id));
    early_.insert(id);
    while (!early_.empty() && *early_.begin() == done_ + 1) {
      early_.erase(early_.begin());
      ++done_;
    }
  }

  /// All operations up to this one are finished.
  uint64_t done() const noexcept { return done_; }

private:
  uint64_t done_ = 0;
  std::set<operation_id> early_;
};

} // namespace hicache
