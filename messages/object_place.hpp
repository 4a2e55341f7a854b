#pragma once

#include "messages/index_protocol.hpp"

#include <cstdint>
#include <optional>

/// Locates a page's bytes in a member's memory.
namespace hicache {

/// Whether headers and objects fit the address space without overflow.
bool is_possible(const exported_objects& exported) noexcept;

/// Whether the member accepts pages of others: it has a segment and is not drained.
bool takes_pages(const member_info& member) noexcept;

/// Start of the object whose header is at `offset` of a member's memory: behind the header in the
/// segment, else among the exported objects. Both arguments come from the network and are
/// untrusted.
/// @returns nullopt if there is no such object, it is on disk, or its header would begin inside
/// another; does not check that the member's memory contains the object
std::optional<uint64_t> object_offset(const member_info& member, uint64_t offset) noexcept;

/// Whether [offset, offset + length) of a member's memory is part of the object of `object_bytes`
/// bytes whose header is at `head`. The numbers are untrusted.
bool is_part_of_object(const member_info& member, uint64_t head, uint64_t object_bytes,
                       uint64_t offset, uint64_t length) noexcept;

} // namespace hicache
