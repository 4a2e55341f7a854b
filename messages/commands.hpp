#pragma once

#include "base/limits.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "hicache/operations.hpp"
#include "messages/storage_batch.hpp"
#include "messages/storage_change.hpp"

#include <array>
#include <cstdint>
#include <vector>

/// Commands from the tree to the other actors, and their results. In-process only: arrays are
/// shared, never copied, and no struct here may leave the process.
namespace hicache {

// -- tree -> controller, backup, prefetcher: effects --------------------------

/// L1 -> L2 copy of whole pages: l1_pages[i] goes to l2_pages[i].
struct write_command {
  operation_id id = 0;
  page_list l1_pages{};
  page_list l2_pages;
};

/// L2 -> L1 copy of whole pages, layer by layer.
struct load_command {
  operation_id id = 0;
  page_list l2_pages;
  page_list l1_pages{};
  layer_progress_ptr progress;
};

/// All copies of one turn of the tree, submitted together: at most one store and one load per layer
/// on the device.
struct copy_batch {
  std::vector<write_command> writes;
  std::vector<load_command> loads;
};

/// L2 -> L3 write of the pages of `names`, in this order.
struct backup_command {
  operation_id id = 0;
  name_list names;
  page_list l2_pages;
  /// `tenant_of` the pages' namespace.
  uint64_t tenant = 0;
};

/// L3 -> L2 fetch of the gapless prefix of the pages of `names`.
struct fetch_command {
  fetch_id id = 0;
  name_list names;
  /// Fewer pages are not worth a read.
  uint64_t least = 0;
  /// `tenant_of` the request's namespace.
  uint64_t tenant = 0;
  /// Pages of the prompt before them.
  uint64_t first = 0;
  /// Estimated time to compute one of them on this rank, on average; 0: not known.
  duration page_compute_time{0};
};

/// Ends a fetch now with the pages that have arrived.
struct terminate_command {
  fetch_id id = 0;
};

/// Ends a backup as soon as none of its writes is in flight, since others are queued behind it.
struct drop_command {
  operation_id id = 0;
};

/// Adds L2 pages to the prefetcher's staging pool.
struct staging_command {
  page_list l2_pages;
};

/// Takes back all pages of the prefetcher's staging pool. No fetch is open at that time.
struct reclaim_command {};

/// Result of one fetch on this rank; prefetcher -> tree.
struct fetched_pages {
  fetch_id id = 0;
  /// L2 pages filled, without a gap, from the first page.
  page_list l2_pages;
  /// Pages from the first that L3 holds on every rank; 0 if the fetch ended before that was
  /// known.
  uint64_t found = 0;
  /// Why no more arrived.
  miss_reason why = miss_reason::none;
  /// Of l2_pages, those from each tier of L3, and the names of the tiers; null if L3 is not made of
  /// tiers.
  std::array<uint64_t, limits::storage_tiers> by_tier{};
  tier_names tiers{};
  /// If pages were found: the ranks' slowest estimates to load and to compute them; 0: not known.
  duration load_estimate{0};
  duration compute_estimate{0};
};

// -- facts: controller and backup -> tree -------------------------------------

enum class operation_kind : uint8_t { write, load, backup };

/// A copy or backup ended on this rank.
struct operation_done {
  operation_kind kind = operation_kind::write;
  operation_id id = 0;
  /// False if a copy failed; its pages hold unspecified bytes then.
  bool ok = true;
  /// True if it failed because the device accepts no more copies.
  bool device_lost = false;
  /// Backups: length of the gapless prefix of the command's pages that L3 has now.
  uint64_t stored = 0;
  /// Backups: expired while the store may still read the pages. A second message follows when it no
  /// longer can.
  bool is_in_quarantine = false;
  /// Backups: what this rank's L3 last wrote or read at or before this time on its clock may have
  /// been evicted.
  time_point lost = {};
};

} // namespace hicache
