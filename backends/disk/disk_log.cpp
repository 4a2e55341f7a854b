#include "backends/disk/disk_log.hpp"

#include "base/check.hpp"

namespace hicache {

uint64_t disk_log::live_bytes_of(uint64_t segment_bytes, uint32_t segments) {
  // The open segment and the one that is kept free hold nothing that counts.
  const auto usable = static_cast<double>(segments - 2) * static_cast<double>(segment_bytes);
  return static_cast<uint64_t>(live_share * usable);
}

disk_log::disk_log(uint64_t segment_bytes, uint32_t segments, uint64_t live_bytes)
  : segment_bytes_(segment_bytes), segments_max_(segments),
    live_bytes_(live_bytes > 0 ? live_bytes : live_bytes_of(segment_bytes, segments)),
    objects_(UINT64_MAX) {
  HICACHE_CHECK(segments >= segments_min);
}

// -- at the start -------------------------------------------------------------

void disk_log::add_segment(uint32_t segment) {
  if (segment >= segments_.size())
    segments_.resize(segment + 1);
  free_.push_back(segment);
}

void disk_log::recover(uint32_t segment, uint64_t offset, const disk_record& record,
                       const absl::flat_hash_set<copy>& gone) {
  auto& info = segments_.at(segment);
  info.generation = record.generation;
  generations_.insert(record.generation);
  generation_ = std::max(generation_, record.generation);
  sequence_ = record.sequence;
  open_ = segment;
  info.tail = std::max(info.tail, offset + disk_record_bytes(record));
  info.has_removals = info.has_removals || !record.removals.empty();
  auto unwanted = std::vector<evicted>{};
  auto at = offset + disk_header_bytes(record);
  for (const auto& object : record.objects) {
    if (!gone.contains({record.generation, at})
        && begin_write(object.key, object.parent, object.length, unwanted)) {
      set_place(object.key, {segment, at, object});
      end_write(object.key, true);
    }
    at += disk_blocks_for(object.length);
  }
}

void disk_log::end_recovery(uint64_t durable) {
  objects_.set_bound(live_bytes_);
  committed_ = sequence_;
  durable_ = durable;
  // Behind the last record may be one that was not found, because one before it did not reach the
  // disk. It is not to be taken for the one behind the next.
  sequence_ += lost_records_max;
  free_.clear();
  for (auto i = uint32_t{0}; i < segments_.size(); ++i) {
    segments_[i].state = segments_[i].tail > 0 ? segment_state::sealed : segment_state::free;
    if (segments_[i].tail == 0)
      free_.push_back(i);
    else if (i == open_)
      segments_[i].state = segment_state::open;
  }
}

// -- objects ------------------------------------------------------------------

std::optional<disk_log::place> disk_log::find(const page_key& key) const {
  const auto& part = places_[folder_table::part_of(key)];
  const auto found = part.find(key);
  return found == part.end() ? std::nullopt : std::optional{found->second};
}

result<object_list> disk_log::list(const std::string& from) const {
  auto listed = objects_.list(from);
  if (!listed)
    return listed;
  // Without those whose writing has not ended, which have no place.
  std::erase_if(listed->objects, [this](listed_object& x) {
    const auto where = find(x.key);
    if (where) {
      x.bytes = where->length;
      x.fingerprint = where->fingerprint;
    }
    return !where;
  });
  return listed;
}

bool disk_log::begin_write(const page_key& key, const page_key& parent, uint64_t length,
                           std::vector<evicted>& gone) {
  const auto room = objects_.begin_write(key, parent, disk_blocks_for(length));
  drop_places(room.evicted, gone);
  return room.is_there;
}

std::optional<disk_record::removal> disk_log::remove(const page_key& key) {
  objects_.remove(key);
  return drop_place(key);
}

void disk_log::set_place(const page_key& key, const place& where) {
  const auto [at, is_new] = places_[folder_table::part_of(key)].try_emplace(key, where);
  if (!is_new) {
    segments_[at->second.segment].live -= disk_blocks_for(at->second.length);
    at->second = where;
  }
  segments_[where.segment].live += disk_blocks_for(where.length);
}

std::optional<disk_record::removal> disk_log::drop_place(const page_key& key) {
  auto& part = places_[folder_table::part_of(key)];
  const auto found = part.find(key);
  if (found == part.end())
    return std::nullopt;
  const auto where = found->second;
  segments_[where.segment].live -= disk_blocks_for(where.length);
  part.erase(found);
  return disk_record::removal{key, segments_[where.segment].generation, where.offset};
}

void disk_log::drop_places(std::span<const bounded_objects::evicted> objects,
                           std::vector<evicted>& gone) {
  for (const auto& object : objects)
    if (const auto where = find(object.key))
      gone.push_back(
        {*drop_place(object.key), object.parent, *where, time_point{duration{object.used}}});
}

// -- records ------------------------------------------------------------------

disk_log::step disk_log::next_step(uint64_t bytes, bool is_cleaning) const {
  if (bytes > segment_bytes_)
    return step::no_room;
  const auto is_last = segments_.size() >= segments_max_;
  const auto fits = open_ && segments_[*open_].tail + bytes <= segment_bytes_;
  // What is left of the open segment is for cleaning, too, if the power failed while that took the
  // last free one.
  if (is_cleaning ? fits || !free_.empty() : fits && !(is_last && free_.empty()))
    return step::none;
  // One is kept for the objects of a segment that is cleaned.
  if (free_.size() > 1)
    return step::none;
  if (!is_last)
    return step::create_segment;
  return !is_cleaning && fewest_live() ? step::clean_segment : step::no_room;
}

void disk_log::no_more_segments(std::vector<evicted>& gone) {
  segments_max_ = static_cast<uint32_t>(segments_.size());
  live_bytes_ = segments_max_ < segments_min
                  ? 0
                  : std::min(live_bytes_, live_bytes_of(segment_bytes_, segments_max_));
  objects_.set_bound(live_bytes_);
  drop_places(objects_.shrink(), gone);
}

disk_log::slot disk_log::allocate(uint64_t bytes) {
  if (!open_ || segments_[*open_].tail + bytes > segment_bytes_) {
    if (open_)
      segments_[*open_].state = segment_state::sealed;
    HICACHE_CHECK(!free_.empty());
    open_ = free_.back();
    free_.pop_back();
    segments_[*open_] = {segment_state::open, ++generation_, 0, 0, false};
    generations_.insert(generation_);
  }
  auto& info = segments_[*open_];
  const auto where = slot{*open_, info.tail, info.generation, ++sequence_, durable_};
  info.tail += bytes;
  return where;
}

void disk_log::commit(const slot& where, const disk_record& record) {
  auto at = where.offset + disk_header_bytes(record);
  for (const auto& object : record.objects) {
    set_place(object.key, {where.segment, at, object});
    at += disk_blocks_for(object.length);
  }
  if (!record.removals.empty())
    segments_[where.segment].has_removals = true;
  committed_ = where.sequence;
  if (std::ranges::find(unsynced_, where.segment) == unsynced_.end())
    unsynced_.push_back(where.segment);
}

void disk_log::abandon(const slot& where) {
  segments_[where.segment].state = segment_state::sealed;
  segments_[where.segment].tail = where.offset;
  open_.reset();
  verified_through_ = std::min(verified_through_, where.sequence - 1);
}

// -- cleaning -----------------------------------------------------------------

std::optional<uint32_t> disk_log::fewest_live() const {
  auto found = std::optional<uint32_t>{};
  for (auto i = uint32_t{0}; i < segments_.size(); ++i)
    if (segments_[i].state == segment_state::sealed
        && (!found || segments_[i].live < segments_[*found].live))
      found = i;
  return found;
}

uint32_t disk_log::victim() const {
  const auto found = fewest_live();
  HICACHE_CHECK(found.has_value());
  return *found;
}

void disk_log::free(uint32_t segment) {
  HICACHE_CHECK(segments_[segment].live == 0);
  auto& info = segments_[segment];
  info.state = segment_state::free;
  generations_.erase(info.generation);
  free_.push_back(segment);
}

} // namespace hicache
