#pragma once

#include "messages/segment_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

/// Format of pages in a segment's memory that outlives its process, so that the next process finds
/// them. Behind its header a slot stores what the header leaves out; the header contains a check
/// over both. The check is written when the page is published, and cleared with the header: a slot
/// without it, such as one reserved but never committed, is no page.
///
/// Checks depend on a random seed in the memory's label and on the offset, so neither bytes of an
/// object nor pages of earlier contents are mistaken for a page.
namespace hicache {

/// What the segment knows about its lasting memory.
struct lasting_memory {
  uint64_t seed = 0;
  /// Whether another process may have left pages.
  bool has_pages = false;
};

/// Marks memory as hicache's and describes it. Stored at the end of the file.
struct memory_label {
  uint64_t bytes = 0;
  /// Changes whenever the memory is initialised.
  uint64_t seed = 0;

  friend bool operator==(const memory_label&, const memory_label&) = default;
};

/// Space for a label: a page of the machine.
inline constexpr size_t memory_label_bytes = 4096;

/// Owner of the memory, by the bytes in place of a label.
enum class memory_owner : uint8_t {
  /// Not hicache's: it must not be touched.
  stranger,
  /// Of another version, or damaged: the content is unusable.
  unreadable,
  known,
};

struct found_label {
  memory_owner owner = memory_owner::stranger;
  /// Set if the owner is known.
  memory_label label;
};

/// @pre target.size() >= memory_label_bytes
void write_label(std::span<std::byte> target, const memory_label& label);

/// @pre target.size() >= memory_label_bytes
void clear_label(std::span<std::byte> target);

/// Reads a label from untrusted bytes, which may be no label at all.
found_label read_label(std::span<const std::byte> source);

/// Makes a sealed page discoverable for the next process. Does nothing if the header does not match
/// the page: others may write to the memory.
void keep_slot(std::span<std::byte> memory, const found_page& page, uint64_t seed);

/// Records whether a page is read in place: the next process keeps it for as long as that may last.
void set_held(std::span<std::byte> memory, uint64_t offset, bool is_held) noexcept;

/// Bounds of one scan step.
struct scan_bounds {
  uint64_t bytes = 0;
  size_t pages = 0;
};

/// Scans for pages from `begin` on and verifies them. Stops after the page that reaches a bound.
/// @pre begin is the end of an earlier part, or 0; memory.size() is a multiple of 64
found_pages scan_pages(std::span<const std::byte> memory, uint64_t begin, uint64_t seed,
                       const scan_bounds& bounds);

} // namespace hicache
