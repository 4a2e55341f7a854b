#pragma once

#include "hicache/clock.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <vector>

/// What a process says to its own segment. Plain values; in-process only.
namespace hicache {

/// A page to be written to this rank's segment.
struct segment_page {
  page_key key;
  /// All zero for a first page.
  page_key parent;
  /// Bytes of the object.
  uint32_t length = 0;
  /// `fingerprint_of` its namespace, and whose quota it counts for.
  uint64_t fingerprint = 0;
  uint64_t tenant = 0;
  /// As in copied_page.
  uint8_t copies = 1;
};

struct segment_pages {
  std::vector<segment_page> list;
};

/// Room for one page in this rank's segment.
struct segment_slot {
  enum class state : uint8_t {
    /// The caller writes header and object to `offset`, then publishes or aborts.
    reserved,
    /// The segment has the page already; nothing to do.
    present,
    /// No room, and nothing may be evicted.
    full,
    /// The page is in L2 and offered from there (backends/cluster/exported_pages.hpp).
    exported,
  };

  page_key key;
  state what = state::full;
  /// Bytes from the start of the segment to the slot; of a exported page, to its header.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;
  /// If it is reserved: the page before.
  page_key parent{};
};

struct segment_slots {
  std::vector<segment_slot> list;
};

/// Pages of a namespace to be kept where they are.
struct segment_holds {
  uint64_t fingerprint = 0;
  std::vector<page_key> keys;
};

/// A page that was found in memory which outlived the process that wrote it.
struct found_page {
  segment_page page;
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Somebody may still read it in place.
  bool was_held = false;
};

/// What was found in a part of such memory.
struct found_pages {
  /// In order of their places; they verify.
  std::vector<found_page> list;
  /// Where pages begin that do not.
  std::vector<uint64_t> damaged;
  /// The part ends here; the next one begins here.
  uint64_t end = 0;
};

/// Pages of other members that are wanted here; their lengths are not known.
struct page_fetch {
  segment_pages pages;
  /// Nobody waits for them any longer.
  time_point deadline;
};

} // namespace hicache
