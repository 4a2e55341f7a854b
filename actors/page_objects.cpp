#include "actors/page_objects.hpp"

#include "base/check.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/hash/page_names.hpp"

#include <span>
#include <utility>

namespace hicache {

namespace {

/// The parent of a first page and of its object.
constexpr auto no_parent = page_key{};

std::vector<page_key> keys_of(const storage_batch& batch) {
  return batch.names->get(batch.first, batch.count);
}

/// The name of the object before that of page `i`, of the same heads.
page_key parent_of(const storage_batch& batch, const std::vector<page_key>& keys, uint64_t i,
                   const page_key& mask) {
  const auto parent = i == 0 ? batch.names->before(batch.first) : keys[i - 1];
  return parent == no_parent ? parent : object_key(parent, mask);
}

} // namespace

page_objects::page_objects(const std::string& fingerprint, std::vector<head_group> groups,
                           const pool_geometry& geometry, std::byte* memory, page_writers writers,
                           std::shared_ptr<exported_pages> exported)
  : groups_(std::move(groups)), geometry_(geometry), memory_(memory), writers_(writers),
    exported_(std::move(exported)) {
  HICACHE_CHECK(!groups_.empty() && memory_ != nullptr && writers_.rank < writers_.ranks);
  for (const auto& group : groups_)
    masks_.push_back(object_mask(fingerprint, group.name));
}

std::vector<bool> page_objects::writes(const storage_batch& batch) const {
  auto own = std::vector<bool>(batch.count, true);
  if (writers_.ranks > 1)
    for (auto i = size_t{0}; const auto& key : keys_of(batch))
      own[i++] = writer_of(key, writers_.ranks) == writers_.rank;
  return own;
}

store_batch<page_key> page_objects::names(const storage_batch& batch) const {
  return {batch.count * per_page(), [me = shared_from_this(), batch] {
            auto names = std::vector<page_key>{};
            names.reserve(batch.count * me->per_page());
            for (const auto& key : keys_of(batch))
              for (const auto& mask : me->masks_)
                names.push_back(object_key(key, mask));
            return names;
          }};
}

store_batch<page_read> page_objects::reads(const storage_batch& batch) const {
  return {
    batch.count * per_page(), [me = shared_from_this(), batch] {
      if (me->exported_)
        me->exported_->reclaim(std::span{*batch.l2_pages}.subspan(batch.l2_first, batch.count));
      const auto keys = keys_of(batch);
      auto reads = std::vector<page_read>{};
      reads.reserve(batch.count * me->per_page());
      for (auto i = uint64_t{0}; i < batch.count; ++i)
        for (auto group = size_t{0}; group < me->per_page(); ++group) {
          const auto place = (batch.l2_first + i) * me->per_page() + group;
          reads.push_back({object_key(keys[i], me->masks_[group]),
                           me->parts_of<std::byte>((*batch.l2_pages)[batch.l2_first + i], group),
                           batch.places ? (*batch.places)[place] : store_place{},
                           parent_of(batch, keys, i, me->masks_[group]), batch.tenant});
        }
      return reads;
    }};
}

storage_backend::read_progress page_objects::progress(const storage_batch& batch) const {
  if (!batch.marks)
    return {};
  return [marks = batch.marks, begin = batch.l2_first * per_page(),
          needed = static_cast<uint32_t>(per_page())](size_t first,
                                                      std::span<const result<void>> outcomes) {
    for (auto i = size_t{0}; i < outcomes.size(); ++i)
      if (outcomes[i])
        marks->add((begin + first + i) / needed, needed);
  };
}

store_batch<page_write> page_objects::own_writes(const storage_batch& batch, size_t count) const {
  return {count * per_page(), [me = shared_from_this(), batch, count] {
            const auto keys = keys_of(batch);
            const auto own = me->writes(batch);
            auto writes = std::vector<page_write>{};
            writes.reserve(count * me->per_page());
            for (auto i = uint64_t{0}; i < batch.count; ++i) {
              const auto page = (*batch.l2_pages)[batch.l2_first + i];
              for (auto group = size_t{0}; own[i] && group < me->per_page(); ++group)
                writes.push_back({object_key(keys[i], me->masks_[group]),
                                  parent_of(batch, keys, i, me->masks_[group]),
                                  me->parts_of<const std::byte>(page, group), batch.tenant});
            }
            return writes;
          }};
}

template <class Byte>
std::vector<std::span<Byte>> page_objects::parts_of(page_index page, size_t group) const {
  const auto runs = geometry_.object_runs(page, groups_[group].heads);
  auto parts = std::vector<std::span<Byte>>{};
  parts.reserve(runs.size());
  for (const auto& run : runs)
    parts.emplace_back(memory_ + run.offset, run.length);
  return parts;
}

} // namespace hicache
