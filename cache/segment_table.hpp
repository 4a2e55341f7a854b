#pragma once

#include "messages/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

/// What became of a request for a slot.
enum class reserve_status : uint8_t {
  /// The slot is the caller's until it publishes or aborts.
  reserved,
  /// The page is stored here, or being written, already: nothing to write.
  already_there,
  /// Every slot is being written, protected by a stored child, or the parent of the page.
  full,
};

/// Answer to reserve.
struct slot_reservation {
  reserve_status status = reserve_status::full;
  /// The slot and its generation, unless full.
  uint32_t slot = 0;
  uint32_t generation = 0;
  /// The page that had to go, for its owner to withdraw from the index before the slot is written.
  std::optional<page_key> evicted;
};

/// Where a published page is.
struct slot_location {
  uint32_t slot = 0;
  uint32_t generation = 0;

  friend bool operator==(const slot_location&, const slot_location&) = default;
};

/// A published page, for block reports.
struct stored_page {
  page_key key;
  uint32_t slot = 0;
  uint32_t generation = 0;

  friend bool operator==(const stored_page&, const stored_page&) = default;
};

struct segment_counters {
  uint32_t free = 0;
  uint32_t writing = 0;
  uint32_t published = 0;
  /// Pages evicted to make room, since the beginning.
  uint64_t evicted = 0;
};

/// The owner's bookkeeping of one segment: equally large slots, each free, being written or
/// published. Pure: neither touches the memory nor reads a clock, and equal calls give equal
/// answers. Not thread-safe. Calls cost O(log slots).
///
/// Generations: each slot counts its uses; the count is raised before a slot is reused and is never
/// 0. A reader that finds another generation than the one it was told knows that the slot was
/// reused.
///
/// Eviction: the least recently used among the published pages without a child in this segment, so
/// no suffix is ever orphaned. A page counts as a child from its reservation on. A parent need not
/// be stored here.
class segment_table {
public:
  /// @pre slots > 0
  explicit segment_table(uint32_t slots);

  segment_table(segment_table&&) noexcept;

  segment_table& operator=(segment_table&&) noexcept;

  ~segment_table();

  /// Takes a slot for a page, evicting one if none is free. The slot that was freed the longest
  /// time ago comes first, so that readers in flight are disturbed late.
  /// @param parent The page before, or null for the first of a sequence. Never evicted for its
  /// child.
  /// @pre parent is null or another key
  slot_reservation reserve(const page_key& key, const page_key* parent);

  /// Makes a written page visible, as the most recently used one.
  /// @returns false, and changes nothing, unless the slot is being written under this generation
  bool publish(uint32_t slot, uint32_t generation);

  /// Gives a slot back that will not be published.
  /// @returns false, and changes nothing, unless the slot is being written under this generation
  bool abort(uint32_t slot, uint32_t generation);

  /// The published page, without refreshing it.
  std::optional<slot_location> find(const page_key& key) const;

  /// Makes a published page the most recently used one.
  /// @returns false if there is none
  bool touch(const page_key& key);

  /// Frees a published page on request. Unlike eviction this may orphan the page's children: they
  /// stay, and are protected as children again once the page returns.
  /// @returns false if the page is not published (a page being written can only be aborted by its
  /// writer)
  bool remove(const page_key& key);

  /// Published pages in slot order, from slot `first` on, at most `count`. The next part of a block
  /// report begins after the last slot returned. Costs the slots it passes.
  std::vector<stored_page> published(uint32_t first, size_t count) const;

  segment_counters counters() const noexcept;

  /// Number of slots.
  uint32_t slots() const noexcept;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
