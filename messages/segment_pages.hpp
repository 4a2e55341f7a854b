#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// Messages from a process to its own segment. Plain values; in-process only.
namespace hicache {

/// A page to write to this process's segment.
struct segment_page {
  page_key key;
  /// All zero for a first page.
  page_key parent;
  /// Bytes of the object.
  uint32_t length = 0;
  /// `fingerprint_of` its namespace, and the tenant whose quota is charged.
  uint64_t fingerprint = 0;
  uint64_t tenant = 0;
  /// As in copied_page.
  uint8_t copies = 1;
};

struct segment_pages {
  std::vector<segment_page> list;
};

/// Room for one page in this process's segment.
struct segment_slot {
  enum class state : uint8_t {
    /// The caller writes header and object to `offset`, then publishes or aborts.
    reserved,
    /// The segment already has the page; nothing to do.
    present,
    /// No room, and nothing may be evicted.
    full,
    /// The page is in L2 and exported from there (backends/cluster/exported_pages.hpp).
    exported,
  };

  page_key key;
  state what = state::full;
  /// Bytes from the start of the segment to the slot; for an exported page, to its header.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;
  /// If reserved: the preceding page.
  page_key parent{};
};

struct segment_slots {
  std::vector<segment_slot> list;
  /// To publish: frees pages that another member offers already, as the index refuses them.
  bool only_new = false;
};

/// Pages of a namespace to keep in place.
struct segment_holds {
  uint64_t fingerprint = 0;
  std::vector<page_key> keys;
};

/// A page found in memory that outlived its writer.
struct found_page {
  segment_page page;
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// A client may still read it in place.
  bool was_held = false;
};

/// The scan result for one part of such memory.
struct found_pages {
  /// Verified pages, sorted by offset.
  std::vector<found_page> list;
  /// Offsets of pages that failed verification.
  std::vector<uint64_t> damaged;
  /// End of the part and start of the next.
  uint64_t end = 0;
};

/// Pages wanted here from other members or the disk; their lengths are unknown.
struct page_fetch {
  segment_pages pages;
  /// The pages are of no use later.
  time_point deadline;
};

/// A page on the disk below this process's segment.
struct disk_page {
  page_key key;
  /// `fingerprint_of` its namespace.
  uint64_t fingerprint = 0;
  /// Bytes of the object.
  uint32_t length = 0;
};

/// A part of the list of these pages.
struct disk_listing {
  std::vector<disk_page> pages;
  /// Where the next part begins; empty after the last one.
  std::string next;
  /// Code `none` unless the disk cannot be listed.
  error failure;
};

/// The end of a batch of the disk's store.
struct disk_completion {
  uint64_t ticket = 0;
  std::vector<result<void>> outcomes;
};

} // namespace hicache
