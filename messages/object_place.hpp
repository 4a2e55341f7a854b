#pragma once

#include "messages/index_protocol.hpp"

#include <cstdint>
#include <optional>

/// Where in a member's memory the bytes of a page are.
namespace hicache {

/// Whether headers and objects end before the largest address there is.
bool is_possible(const exported_objects& exported) noexcept;

/// Whether the member takes pages of others: it has a segment, and is not drained.
bool takes_pages(const member_info& member) noexcept;

/// Where the object begins whose header is at `offset` of a member's memory: behind the header in
/// the segment, else among the exported objects. Nobody vouches for either argument.
/// @returns nothing if there is no such object, or its header would begin in the midst of another.
/// Whether the member's memory holds the object is not looked at.
std::optional<uint64_t> object_offset(const member_info& member, uint64_t offset) noexcept;

/// Whether [offset, offset + length) of a member's memory is part of the object of `object_bytes`
/// bytes whose header is at `head`. Nobody vouches for the numbers.
bool is_part_of_object(const member_info& member, uint64_t head, uint64_t object_bytes,
                       uint64_t offset, uint64_t length) noexcept;

} // namespace hicache
