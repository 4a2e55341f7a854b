#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

/// What the prefetcher and the backup ask of the storage actor.
namespace hicache {

/// See include/hicache/storage_backend.hpp.
struct store_place;
using place_list = std::shared_ptr<const std::vector<store_place>>;

/// Which pages of a fetch were read so far: set on the store's thread while reads are under way, so
/// that a fetch that ends early has what arrived.
class read_marks {
public:
  explicit read_marks(size_t pages) : objects_(pages) {}

  /// One more object of a page is in L2, and the store does not touch it any more.
  /// @param needed Objects of a page.
  void add(size_t page, uint32_t needed) noexcept {
    if (objects_[page].fetch_add(1, std::memory_order_acq_rel) + 1 == needed)
      objects_[page].store(complete, std::memory_order_release);
  }

  bool has(size_t page) const noexcept {
    return objects_[page].load(std::memory_order_acquire) == complete;
  }

private:
  static constexpr auto complete = ~uint32_t{0};

  /// How many were read of each page.
  std::vector<std::atomic<uint32_t>> objects_;
};

/// Pages [first, first + count) of `keys`; page first + i moves from or to l2_pages[l2_first +
/// i]. Keys name pages; the names of this rank's objects follow from them.
struct storage_batch {
  key_list keys;
  /// For writes: the page before each page.
  key_list parents;
  uint64_t first = 0;
  uint64_t count = 0;
  /// Null where no bytes move.
  page_list l2_pages;
  uint64_t l2_first = 0;
  /// For writes: `tenant_of` the pages' namespace.
  uint64_t tenant = 0;
  /// For reads: where the objects of l2_pages are, all objects of each page; null if nobody
  /// looked.
  place_list places = {};
  /// For reads: of l2_pages; null if nobody wants to know.
  std::shared_ptr<read_marks> marks = {};
};

/// Result of a look-up: the pages that follow on from the first one without a gap.
struct storage_hit {
  uint64_t pages = 0;
  /// Where their objects are, all objects of each page.
  place_list places = {};
};

/// Result of a storage batch: one code per page; ec::none if it succeeded.
struct storage_outcome {
  std::vector<ec> pages;
  /// Writes: of the pages before the first that failed, those that another rank writes.
  uint64_t left_to_others = 0;
  /// Not 0: the deadline passed, and the store's call has not returned, so it may still read or
  /// write the pages. Ask the storage to `drain` this ticket to hear when it does not.
  uint64_t ticket = 0;
};

/// A finished batch on its way from the store's thread to the storage actor.
struct storage_completion {
  uint64_t ticket = 0;
  /// Look-ups.
  storage_hit hit;
  /// All others.
  storage_outcome outcome;
  /// Not none: all objects failed, the first of them so, because the store does not work.
  ec failure = ec::none;
};

} // namespace hicache
