#pragma once

#include "backends/bounded_objects.hpp"
#include "hicache/clock.hpp"
#include "messages/disk_record.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Where the objects of a disk store lie in its segments, which of them to evict, and where the
/// next record goes. Values alone, without I/O; not thread-safe.
///
/// Records are appended to the open segment. When it is full it is sealed and a free one is opened.
/// When none is free, the sealed segment with the fewest live bytes is cleaned: its live objects
/// are written again, and it is free. Since the objects have at most `live_share` of the segments,
/// there is always one that is worth cleaning. (M. Rosenblum and J. Ousterhout, "The design and
/// implementation of a log-structured file system", 1992.)
class disk_log {
public:
  /// Share of the segments, two of which are kept for cleaning, that live objects may have. At 0.8
  /// the segment with the fewest gives back a fifth of itself, however objects die.
  static constexpr double live_share = 0.8;

  /// Segments without which there is no room to clean.
  static constexpr uint32_t segments_min = 4;

  struct place {
    place() = default;

    /// @param object Of a record in this segment; its bytes begin at `offset`.
    place(uint32_t in_segment, uint64_t at, const disk_record::object& object)
      : segment(in_segment), offset(at), length(object.length), checksum(object.checksum),
        fingerprint(object.fingerprint), tenant(object.tenant) {}

    uint32_t segment = 0;
    /// Of the object's first byte.
    uint64_t offset = 0;
    uint64_t length = 0;
    uint64_t checksum = 0;
    /// As in disk_record::object.
    uint64_t fingerprint = 0;
    uint64_t tenant = 0;

    friend bool operator==(const place&, const place&) = default;
  };

  /// Where a record is to be written, and what its header says.
  struct slot {
    uint32_t segment = 0;
    uint64_t offset = 0;
    uint64_t generation = 0;
    uint64_t sequence = 0;
    uint64_t durable = 0;
  };

  /// What must happen before a record can be written.
  enum class step : uint8_t { none, create_segment, clean_segment, no_room };

  /// @param segments Most segments; at least segments_min.
  /// @param live_bytes Most bytes of objects, in whole blocks; 0: what `live_share` says.
  disk_log(uint64_t segment_bytes, uint32_t segments, uint64_t live_bytes);

  // -- at the start -------------------------------------------------------------

  /// A segment that exists.
  void add_segment(uint32_t segment);

  /// A copy of an object: generation of its segment, and offset. No two have the same.
  using copy = std::pair<uint64_t, uint64_t>;

  /// A record that a segment holds. In the order of their sequence.
  /// @param gone What was removed of all records.
  void recover(uint32_t segment, uint64_t offset, const disk_record& record,
               const absl::flat_hash_set<copy>& gone);

  /// Opens the log for writing. What is too much is evicted by the next write. Segments without
  /// records are free; the one with the last record goes on.
  /// @param durable What may be said of earlier records: all objects up to this one verify.
  void end_recovery(uint64_t durable);

  // -- objects ------------------------------------------------------------------

  std::optional<place> find(const page_key& key) const;

  void use(const page_key& key) { objects_.use(key); }

  /// Objects are used or written at this time from now on. Those of earlier processes were so at
  /// the clock's beginning.
  void set_time(time_point now) { objects_.set_time(now.time_since_epoch().count()); }

  /// As folder_table::list.
  result<object_list> list(const std::string& from) const;

  /// An object that was evicted: what a record must say about it, and what it was.
  struct evicted {
    disk_record::removal removal;
    page_key parent;
    place where;
    time_point used;
  };

  /// As bounded_objects::begin_write.
  /// @param gone Gets evicted objects.
  /// @returns false if there is no room
  bool begin_write(const page_key& key, const page_key& parent, uint64_t length,
                   std::vector<evicted>& gone);

  /// @param is_stored Whether a record with the object was committed.
  void end_write(const page_key& key, bool is_stored) { objects_.end_write(key, is_stored); }

  /// Removes an object.
  /// @returns what a record must say, so that it does not come back; empty if there is none
  std::optional<disk_record::removal> remove(const page_key& key);

  // -- records ------------------------------------------------------------------

  /// @param bytes Of the record.
  /// @param is_cleaning Whether it holds objects of the segment that is cleaned.
  step next_step(uint64_t bytes, bool is_cleaning) const;

  /// The number of the next segment to create.
  uint32_t next_segment() const noexcept { return static_cast<uint32_t>(segments_.size()); }

  /// The disk has no room for another segment.
  /// @param gone Gets evicted objects.
  void no_more_segments(std::vector<evicted>& gone);

  /// @pre next_step() is none
  slot allocate(uint64_t bytes);

  /// The record was written.
  void commit(const slot& where, const disk_record& record);

  /// Writing failed. Nothing can follow in this segment.
  void abandon(const slot& where);

  /// The last record whose writing was committed.
  uint64_t last_committed() const noexcept { return committed_; }

  /// Segments with committed records that may not be on the disk yet. Forgets them.
  std::vector<uint32_t> take_unsynced() { return std::exchange(unsynced_, {}); }

  /// All records up to this one are on the disk.
  void note_durable(uint64_t sequence) {
    durable_ = std::max(durable_, std::min(sequence, verified_through_));
  }

  // -- cleaning -----------------------------------------------------------------

  /// The segment to clean next.
  /// @pre next_step() is clean_segment
  uint32_t victim() const;

  /// Bytes of its live objects, in whole blocks.
  uint64_t live_bytes(uint32_t segment) const { return segments_.at(segment).live; }

  /// Whether its records may have something that is to be written again.
  bool has_contents(uint32_t segment) const {
    return segments_.at(segment).live > 0 || segments_.at(segment).has_removals;
  }

  /// Whether what was removed is still on the disk.
  bool is_needed(const disk_record::removal& x) const {
    return generations_.contains(x.generation);
  }

  /// What was to be written again is on the disk, elsewhere, where the segment begins with no
  /// record.
  /// @pre no live object lies in the segment
  void free(uint32_t segment);

  // -- figures ------------------------------------------------------------------

  uint64_t size() const noexcept { return objects_.size(); }

  uint64_t bytes() const noexcept { return objects_.bytes(); }

  uint64_t capacity() const noexcept { return live_bytes_; }

  uint64_t evictions() const noexcept { return objects_.evictions(); }

private:
  enum class segment_state : uint8_t { free, open, sealed };

  /// Records that may be under way when the power fails.
  static constexpr auto lost_records_max = uint64_t{1} << 20;

  struct segment_info {
    segment_state state = segment_state::free;
    uint64_t generation = 0;
    /// Bytes of live objects, in whole blocks.
    uint64_t live = 0;
    /// Where the next record goes.
    uint64_t tail = 0;
    /// Whether a record has removals.
    bool has_removals = false;
  };

  using place_map = absl::flat_hash_map<page_key, place, std::hash<page_key>>;

  static uint64_t live_bytes_of(uint64_t segment_bytes, uint32_t segments);

  void set_place(const page_key& key, const place& where);
  std::optional<disk_record::removal> drop_place(const page_key& key);
  void drop_places(std::span<const bounded_objects::evicted> objects, std::vector<evicted>& gone);
  std::optional<uint32_t> fewest_live() const;

  const uint64_t segment_bytes_;
  uint32_t segments_max_;
  uint64_t live_bytes_;
  bounded_objects objects_;
  /// In parts, as those of folder_table.
  std::array<place_map, folder_table::parts> places_;
  std::vector<segment_info> segments_;
  /// Of segments with records.
  absl::flat_hash_set<uint64_t> generations_;
  std::vector<uint32_t> free_;
  std::optional<uint32_t> open_;
  uint64_t generation_ = 0;
  uint64_t sequence_ = 0;
  uint64_t committed_ = 0;
  uint64_t durable_ = 0;
  /// Before the first record whose writing failed: its header may be on the disk without all that
  /// it names, so a restart must verify it.
  uint64_t verified_through_ = UINT64_MAX;
  std::vector<uint32_t> unsynced_;
};

} // namespace hicache
