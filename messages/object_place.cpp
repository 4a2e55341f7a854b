#include "messages/object_place.hpp"

#include "messages/page_header.hpp"

#include <limits>

namespace hicache {

namespace {

constexpr auto last_offset = std::numeric_limits<uint64_t>::max();

} // namespace

bool is_possible(const lent_objects& lent) noexcept {
  if (lent.count == 0)
    return true;
  return lent.object_bytes > 0 && lent.count <= (last_offset - lent.headers) / slot_object_offset
         && lent.count <= (last_offset - lent.objects) / lent.object_bytes;
}

bool takes_pages(const member_info& member) noexcept {
  return !member.is_closed && (member.lent.count == 0 || member.lent.headers > 0);
}

std::optional<uint64_t> object_offset(const member_info& member, uint64_t offset) noexcept {
  const auto& lent = member.lent;
  if (lent.count > 0 && offset >= lent.headers) {
    const auto object = (offset - lent.headers) / slot_object_offset;
    if (!is_possible(lent) || (offset - lent.headers) % slot_object_offset != 0
        || object >= lent.count)
      return std::nullopt;
    return lent.objects + object * lent.object_bytes;
  }
  if (offset > last_offset - slot_object_offset)
    return std::nullopt;
  return offset + slot_object_offset;
}

bool is_part_of_object(const member_info& member, uint64_t head, uint64_t object_bytes,
                       uint64_t offset, uint64_t length) noexcept {
  const auto object = object_offset(member, head);
  return object && offset >= *object && offset - *object <= object_bytes
         && length <= object_bytes - (offset - *object);
}

} // namespace hicache
