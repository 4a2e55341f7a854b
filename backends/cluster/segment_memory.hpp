#pragma once

#include "messages/page_header.hpp"
#include "messages/segment_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

/// How pages lie in a segment's memory. Writers hold the slot; readers may look at any moment.
namespace hicache {

/// Where a slot's object goes.
/// @pre the slot lies in the memory
std::span<std::byte> object_of(std::span<std::byte> memory, const segment_slot& slot);

/// Writes the header in front of an object that is complete; from now on readers take it for the
/// page.
/// @param checksum page_checksum of the object.
void seal_slot(std::span<std::byte> memory, const segment_slot& slot, uint64_t fingerprint,
               uint64_t checksum);

/// Writes a header at `offset`, after all that was written to the memory before.
void write_header(std::span<std::byte> memory, uint64_t offset, const page_header& header);

/// Clears the header at `offset`: whoever still reads there finds none afterwards.
void clear_header(std::span<std::byte> memory, uint64_t offset) noexcept;

/// Whether the header at `offset` was cleared and no other was written since.
/// @pre the memory reaches as far
bool is_header_cleared(std::span<const std::byte> memory, uint64_t offset) noexcept;

/// Moves a page of `bytes`, header included, and gives it another generation. Places may overlap.
/// A header that cannot be read is not written again.
void move_slot(std::span<std::byte> memory, uint64_t from, uint64_t to, uint64_t bytes,
               uint32_t generation);

/// Whether a page's header and object are those that were written. What the header says is not
/// trusted: others may write to the memory.
/// @param page, fingerprint What the owner knows of it; the header is at `page.offset`.
/// @param object Where the object is.
bool is_intact(std::span<const std::byte> memory, const segment_slot& page, uint64_t object,
               uint64_t fingerprint);

} // namespace hicache
