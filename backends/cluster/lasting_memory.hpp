#pragma once

#include "messages/segment_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// How pages lie in a segment's memory that outlives its process, so that the next one finds them.
/// A slot says, behind its header, what the header leaves out; a check over both stands in the
/// header. It is written when the page is published, and goes with the header when the page does:
/// what has none is no page, such as one that was reserved and never committed.
///
/// Checks depend on a random number in the label of the memory and on the place, so neither bytes
/// of an object nor pages of earlier contents are taken for a page.
namespace hicache {

/// What memory that outlives its process is to the segment in it.
struct lasting_memory {
  /// Of the label.
  uint64_t seed = 0;
  /// Another process may have left pages.
  bool has_pages = false;
};

/// Says that memory is ours, and what is in it. Stands at the end of the file.
struct memory_label {
  /// Of the file.
  uint64_t bytes = 0;
  /// New with each beginning from nothing.
  uint64_t seed = 0;

  friend bool operator==(const memory_label&, const memory_label&) = default;
};

/// Room for a label: a page of the machine.
inline constexpr size_t memory_label_bytes = 4096;

/// Whose the memory is, by what stands where a label should.
enum class memory_owner : uint8_t {
  /// Something else: it must not be touched.
  stranger,
  /// Of another version, or damaged: what is in it cannot be used.
  unreadable,
  known,
};

struct found_label {
  memory_owner owner = memory_owner::stranger;
  /// If it is known.
  memory_label label;
};

/// @pre target.size() >= memory_label_bytes
void write_label(std::span<std::byte> target, const memory_label& label);

/// @pre target.size() >= memory_label_bytes
void clear_label(std::span<std::byte> target);

/// Reads a label from bytes that nobody vouches for, such as none at all.
found_label read_label(std::span<const std::byte> source);

/// Has a page that is sealed found by the next process. Does nothing if the header is not the
/// page's: others may write to the memory.
void keep_slot(std::span<std::byte> memory, const found_page& page, uint64_t seed);

/// Notes in a page's header whether somebody reads it in place: the next process lets it be for as
/// long as that may last.
void set_held(std::span<std::byte> memory, uint64_t offset, bool is_held) noexcept;

/// How much is looked at in one go.
struct scan_bounds {
  uint64_t bytes = 0;
  size_t pages = 0;
};

/// Looks for pages from `begin` on, and verifies them. Stops behind the page with which a bound is
/// reached, or at the end of the memory.
/// @pre begin is where a part ended, or 0; memory.size() is a multiple of 64
found_pages scan_pages(std::span<const std::byte> memory, uint64_t begin, uint64_t seed,
                       const scan_bounds& bounds);

} // namespace hicache
