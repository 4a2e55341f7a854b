#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "hicache/operations.hpp"
#include "messages/storage_batch.hpp"
#include "messages/storage_change.hpp"

#include <cstdint>
#include <vector>

/// What the tree asks of the other actors, and what they answer. In-process only: arrays are
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

/// The copies of one turn of the tree, submitted as one: at most one store and one load per layer
/// on the device.
struct copy_batch {
  std::vector<write_command> writes;
  std::vector<load_command> loads;
};

/// L2 -> L3 write: keys[i] names l2_pages[i]; parents[i] names the page before it, or is all zero
/// for a first page.
struct backup_command {
  operation_id id = 0;
  key_list keys;
  key_list parents;
  page_list l2_pages;
  /// `tenant_of` the pages' namespace.
  uint64_t tenant = 0;
};

/// L3 -> L2 fetch of the pages named by keys[first...], as far as they follow on without a gap.
struct fetch_command {
  fetch_id id = 0;
  key_list keys;
  uint64_t first = 0;
  /// Fewer pages are not worth a read.
  uint64_t least = 0;
};

/// Ends a fetch now, whatever has arrived.
struct terminate_command {
  fetch_id id = 0;
};

/// Ends a backup as soon as no write of it is under way: others wait behind it.
struct drop_command {
  operation_id id = 0;
};

/// Gives L2 pages to the prefetcher's reserve.
struct staging_command {
  page_list l2_pages;
};

/// Takes all pages of the prefetcher's reserve back. No fetch is open then.
struct reclaim_command {};

/// Result of one fetch on this rank; the prefetcher tells the tree.
struct fetched_pages {
  fetch_id id = 0;
  /// L2 pages filled without a gap from keys[first] on.
  page_list l2_pages;
  /// Pages from keys[first] on that L3 holds on every rank; 0 if the fetch ended before that was
  /// known.
  uint64_t found = 0;
  /// Why no more arrived.
  miss_reason why = miss_reason::none;
};

// -- facts: controller and backup -> tree -------------------------------------

enum class operation_kind : uint8_t { write, load, backup };

/// A copy or backup ended on this rank.
struct operation_done {
  operation_kind kind = operation_kind::write;
  operation_id id = 0;
  /// False if a copy failed; then its pages hold unspecified bytes.
  bool ok = true;
  /// True if it failed since the device takes no copies any more.
  bool device_lost = false;
  /// Backups: pages of the command that L3 has now, from the first one on without a gap.
  uint64_t stored = 0;
  /// Backups: given up while the store may still read the pages. Another follows when it cannot.
  bool is_in_quarantine = false;
};

} // namespace hicache
