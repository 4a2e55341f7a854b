#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// Requests of the prefetcher and the backup to the storage actor.
namespace hicache {

/// See cache/hash/page_names.hpp.
class path_names;
using name_list = std::shared_ptr<const path_names>;

/// See include/hicache/storage_backend.hpp.
struct store_place;
using place_list = std::shared_ptr<const std::vector<store_place>>;
using tier_names = std::shared_ptr<const std::vector<std::string>>;

/// A tier of L3 for each page; below limits::storage_tiers.
using tier_list = std::vector<uint8_t>;

/// Which pages of a fetch have been read: set on the store's thread during reads, so that a fetch
/// that ends early keeps the pages that arrived.
class read_marks {
public:
  explicit read_marks(size_t pages) : objects_(pages) {}

  /// Records one more object of a page in L2; the store no longer touches it.
  /// @param needed Objects per page.
  void add(size_t page, uint32_t needed) noexcept {
    if (objects_[page].fetch_add(1, std::memory_order_acq_rel) + 1 == needed)
      objects_[page].store(complete, std::memory_order_release);
  }

  bool has(size_t page) const noexcept {
    return objects_[page].load(std::memory_order_acquire) == complete;
  }

private:
  static constexpr auto complete = ~uint32_t{0};

  /// Objects read, by page.
  std::vector<std::atomic<uint32_t>> objects_;
};

/// Pages [first, first + count) of `names`; page first + i moves from or to l2_pages[l2_first +
/// i]. The names of this rank's objects follow from those of the pages.
struct storage_batch {
  name_list names;
  uint64_t first = 0;
  uint64_t count = 0;
  /// Null if no bytes move.
  page_list l2_pages = {};
  uint64_t l2_first = 0;
  /// `tenant_of` the pages' namespace.
  uint64_t tenant = 0;
  /// For reads: the locations of the objects of l2_pages, all objects of each page; null without a
  /// lookup.
  place_list places = {};
  /// For reads: marks for l2_pages; null if not needed.
  std::shared_ptr<read_marks> marks = {};
};

/// Result of a lookup: the gapless prefix that exists.
struct storage_hit {
  uint64_t pages = 0;
  /// Locations of their objects, all objects of each page.
  place_list places = {};
  /// Their tiers: the lowest of their objects. Null: all in the first.
  std::shared_ptr<const tier_list> tiers = {};
  /// The names of the tiers; null if L3 is not made of tiers.
  tier_names names = {};
};

/// Result of a storage batch: one code per page; ec::none on success.
struct storage_outcome {
  std::vector<ec> pages;
  /// Writes: number of pages before the first failure that another rank writes.
  uint64_t left_to_others = 0;
  /// Nonzero: the deadline passed and the store's call has not returned, so it may still read or
  /// write the pages. A `drain` request with this ticket is answered once it has returned.
  uint64_t ticket = 0;
  /// Writes: the latest `storage_backend::watch_losses` so far.
  time_point lost = {};
};

/// A finished batch; store's thread -> storage actor.
struct storage_completion {
  uint64_t ticket = 0;
  /// For lookups.
  storage_hit hit;
  /// For all others.
  storage_outcome outcome;
  /// Set if all objects failed because of the store: the code of the first.
  ec failure = ec::none;
};

} // namespace hicache
