#include "messages/object_place.hpp"

#include "messages/page_header.hpp"

#include <limits>

namespace hicache {

namespace {

constexpr auto last_offset = std::numeric_limits<uint64_t>::max();

} // namespace

bool is_possible(const exported_objects& exported) noexcept {
  return exported.count == 0
         || (exported.object_bytes > 0
             && exported.count <= (last_offset - exported.headers) / slot_object_offset
             && exported.count <= (last_offset - exported.objects) / exported.object_bytes);
}

bool takes_pages(const member_info& member) noexcept {
  return !member.is_closed && (member.exported.count == 0 || member.exported.headers > 0);
}

std::optional<uint64_t> object_offset(const member_info& member, uint64_t offset) noexcept {
  if (is_on_disk(offset))
    return std::nullopt;
  const auto& exported = member.exported;
  if (exported.count > 0 && offset >= exported.headers) {
    const auto object = (offset - exported.headers) / slot_object_offset;
    if (!is_possible(exported) || (offset - exported.headers) % slot_object_offset != 0
        || object >= exported.count)
      return std::nullopt;
    return exported.objects + object * exported.object_bytes;
  }
  return offset + slot_object_offset;
}

bool is_part_of_object(const member_info& member, uint64_t head, uint64_t object_bytes,
                       uint64_t offset, uint64_t length) noexcept {
  const auto object = object_offset(member, head);
  return object && offset >= *object && offset - *object <= object_bytes
         && length <= object_bytes - (offset - *object);
}

} // namespace hicache
