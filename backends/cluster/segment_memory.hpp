#pragma once

#include "messages/page_header.hpp"
#include "messages/segment_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

/// Format of pages in a segment's memory. Writers hold the slot; readers may read at any moment.
namespace hicache {

/// The object of a slot.
/// @pre the slot lies in the memory
std::span<std::byte> object_of(std::span<std::byte> memory, const segment_slot& slot);

/// Writes the header in front of a complete object, which makes the page visible to readers.
/// @param checksum page_checksum of the object.
void seal_slot(std::span<std::byte> memory, const segment_slot& slot, uint64_t fingerprint,
               uint64_t checksum);

/// Writes a header at `offset`, after all earlier writes to the memory.
void write_header(std::span<std::byte> memory, uint64_t offset, const page_header& header);

/// Clears the header at `offset`: later readers find none.
void clear_header(std::span<std::byte> memory, uint64_t offset) noexcept;

/// Whether the header at `offset` was cleared and not written again.
/// @pre the memory includes the header
bool is_header_cleared(std::span<const std::byte> memory, uint64_t offset) noexcept;

/// Moves a page of `bytes`, header included, and gives it another generation. The ranges may
/// overlap. An unreadable header is not written again.
void move_slot(std::span<std::byte> memory, uint64_t from, uint64_t to, uint64_t bytes,
               uint32_t generation);

/// Whether a page's header and object are as written; trusts neither, as others may write to them.
/// @param page, fingerprint The owner's record of it; the header is at `page.offset`.
/// @param object Offset of the object.
bool is_intact(std::span<const std::byte> memory, const segment_slot& page, uint64_t object,
               uint64_t fingerprint);

} // namespace hicache
