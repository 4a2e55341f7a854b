#include "backends/cluster/exported_pages.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/page_checksum.hpp"
#include "messages/object_place.hpp"
#include "messages/page_header.hpp"

#include <utility>

namespace hicache {

exported_pages::exported_pages(std::span<std::byte> memory, const exported_objects& objects,
                               uint64_t objects_per_page)
  : memory_(memory), objects_(objects), objects_per_page_(objects_per_page),
    entries_(objects.count) {
  HICACHE_CHECK(objects.count > 0 && objects_per_page > 0 && is_possible(objects));
  HICACHE_CHECK(objects.headers + objects.count * slot_object_offset <= memory.size()
                && objects.objects + objects.count * objects.object_bytes <= memory.size());
}

void exported_pages::open(notice reclaimed) {
  const auto guard = std::lock_guard{mutex_};
  HICACHE_CHECK(reclaimed && !reclaimed_);
  reclaimed_ = std::move(reclaimed);
}

void exported_pages::close() {
  const auto guard = std::lock_guard{mutex_};
  reclaimed_ = nullptr;
  for (auto object = uint64_t{0}; object < objects_.count; ++object)
    drop(object);
}

std::optional<segment_slot>
exported_pages::export_page(std::span<const std::span<const std::byte>> parts, const page_key& key,
                            uint64_t fingerprint) {
  const auto object = find_object(parts);
  const auto slot = object ? begin(*object, key) : std::nullopt;
  // Without the lock: this reads the whole object.
  return slot && finish(*slot, fingerprint, page_checksum(parts)) ? slot : std::nullopt;
}

std::optional<segment_slot> exported_pages::begin(uint64_t object, const page_key& key) {
  HICACHE_CHECK(object < objects_.count);
  const auto guard = std::lock_guard{mutex_};
  if (!reclaimed_)
    return std::nullopt;
  if (const auto gone = drop(object))
    reclaimed_({{*gone}});
  if (++last_generation_ == 0)
    last_generation_ = 1;
  entries_[object] = {key, last_generation_, false};
  return describe(object);
}

bool exported_pages::finish(const segment_slot& slot, uint64_t fingerprint, uint64_t checksum) {
  const auto guard = std::lock_guard{mutex_};
  const auto object = standing(slot);
  if (!object)
    return false;
  write_header(memory_, slot.offset,
               {slot.generation, fingerprint, slot.key, slot.length, checksum});
  entries_[*object].has_header = true;
  return true;
}

bool exported_pages::is_exported(const segment_slot& slot) const {
  const auto guard = std::lock_guard{mutex_};
  const auto object = standing(slot);
  return object && entries_[*object].has_header;
}

bool exported_pages::is_exported(uint64_t object, const page_key& key) const {
  const auto guard = std::lock_guard{mutex_};
  return entries_[object].has_header && entries_[object].key == key;
}

bool exported_pages::is_damaged(const segment_slot& slot, uint64_t fingerprint) const {
  const auto guard = std::lock_guard{mutex_};
  const auto object = standing(slot);
  return object && entries_[*object].has_header
         && !is_intact(memory_, slot, objects_.objects + *object * objects_.object_bytes,
                       fingerprint);
}

std::optional<uint64_t>
exported_pages::find_object(std::span<const std::span<const std::byte>> parts) const noexcept {
  if (parts.size() != 1 || parts.front().size() != objects_.object_bytes)
    return std::nullopt;
  const auto* first = memory_.data() + objects_.objects;
  const auto* address = parts.front().data();
  // std::less orders pointers into different memories.
  if (std::less{}(address, first) || !std::less{}(address, memory_.data() + memory_.size()))
    return std::nullopt;
  const auto offset = static_cast<uint64_t>(address - first);
  const auto object = offset / objects_.object_bytes;
  const auto is_object = offset % objects_.object_bytes == 0 && object < objects_.count;
  return is_object ? std::optional{object} : std::nullopt;
}

uint64_t exported_pages::header_of(uint64_t object) const noexcept {
  return objects_.headers + object * slot_object_offset;
}

void exported_pages::revoke(const segment_slot& slot) {
  const auto guard = std::lock_guard{mutex_};
  if (const auto object = standing(slot))
    drop(*object);
}

void exported_pages::reclaim(std::span<const page_index> pages) {
  auto gone = segment_slots{};
  const auto guard = std::lock_guard{mutex_};
  for (const auto page : pages) {
    const auto first = page * objects_per_page_;
    HICACHE_CHECK(first + objects_per_page_ <= objects_.count);
    for (auto object = first; object < first + objects_per_page_; ++object)
      if (const auto exported = drop(object))
        gone.list.push_back(*exported);
  }
  if (!gone.list.empty())
    reclaimed_(std::move(gone));
}

// -- internal steps -----------------------------------------------------------

std::optional<uint64_t> exported_pages::standing(const segment_slot& slot) const {
  const auto object = (slot.offset - objects_.headers) / slot_object_offset;
  if (slot.offset < objects_.headers || object >= objects_.count)
    return std::nullopt;
  const auto& here = entries_[object];
  if (here.generation == 0 || here.generation != slot.generation || here.key != slot.key)
    return std::nullopt;
  return object;
}

std::optional<segment_slot> exported_pages::drop(uint64_t object) {
  const auto before = describe(object);
  if (!std::exchange(entries_[object], {}).has_header)
    return std::nullopt;
  clear_header(memory_, before.offset);
  return before;
}

segment_slot exported_pages::describe(uint64_t object) const {
  const auto& here = entries_[object];
  return {here.key, segment_slot::state::exported, header_of(object), here.generation,
          static_cast<uint32_t>(objects_.object_bytes)};
}

} // namespace hicache
