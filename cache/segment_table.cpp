#include "cache/segment_table.hpp"

#include "base/check.hpp"

#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_map.h>

#include <deque>
#include <functional>
#include <utility>

namespace hicache {

namespace {

enum class slot_state : uint8_t { free, writing, published };

struct slot_entry {
  page_key key;
  /// Meaningful if has_parent.
  page_key parent;
  /// When the page was used last, by the table's own count of uses.
  uint64_t used = 0;
  uint32_t generation = 0;
  /// Pages in the segment, written or published, whose parent this is.
  uint32_t children = 0;
  slot_state state = slot_state::free;
  bool has_parent = false;
};

} // namespace

/// Invariants:
/// - `slot_of` holds exactly the keys of the slots that are not free.
/// - `victims` holds exactly (used, slot) of the published pages without children.
/// - `orphans` holds the number of children of each parent that is not in the segment and has some.
struct segment_table::state {
  std::vector<slot_entry> slots;
  /// Oldest first.
  std::deque<uint32_t> free_slots;
  absl::flat_hash_map<page_key, uint32_t, std::hash<page_key>> slot_of;
  absl::flat_hash_map<page_key, uint32_t, std::hash<page_key>> orphans;
  absl::btree_set<std::pair<uint64_t, uint32_t>> victims;
  uint64_t uses = 0;
  uint32_t published = 0;
  uint64_t evicted = 0;

  /// To be called before and after the facts that decide whether a slot is a victim change.
  void leave_victims(uint32_t slot) { victims.erase({slots[slot].used, slot}); }

  void enter_victims(uint32_t slot) {
    const auto& entry = slots[slot];
    if (entry.state == slot_state::published && entry.children == 0)
      victims.insert({entry.used, slot});
  }

  void add_child(const page_key& parent) {
    if (auto at = slot_of.find(parent); at != slot_of.end()) {
      leave_victims(at->second);
      ++slots[at->second].children;
    } else {
      ++orphans[parent];
    }
  }

  void drop_child(const page_key& parent) {
    if (auto at = slot_of.find(parent); at != slot_of.end()) {
      HICACHE_CHECK(slots[at->second].children > 0);
      --slots[at->second].children;
      enter_victims(at->second);
    } else {
      const auto orphan = orphans.find(parent);
      HICACHE_CHECK(orphan != orphans.end());
      if (--orphan->second == 0)
        orphans.erase(orphan);
    }
  }

  /// Empties a slot that is being written or published.
  void clear(uint32_t slot) {
    auto& entry = slots[slot];
    leave_victims(slot);
    slot_of.erase(entry.key);
    if (entry.children > 0)
      orphans.emplace(entry.key, std::exchange(entry.children, 0));
    published -= entry.state == slot_state::published ? 1 : 0;
    entry.state = slot_state::free;
    free_slots.push_back(slot);
    if (std::exchange(entry.has_parent, false))
      drop_child(entry.parent);
  }

  bool is_writing(uint32_t slot, uint32_t generation) const {
    return slot < slots.size() && slots[slot].state == slot_state::writing
           && slots[slot].generation == generation;
  }

  /// The published slot of a key.
  std::optional<uint32_t> find(const page_key& key) const {
    const auto at = slot_of.find(key);
    if (at == slot_of.end() || slots[at->second].state != slot_state::published)
      return std::nullopt;
    return at->second;
  }
};

segment_table::segment_table(uint32_t slots) : state_(std::make_unique<state>()) {
  HICACHE_CHECK(slots > 0);
  state_->slots.resize(slots);
  for (uint32_t i = 0; i < slots; ++i)
    state_->free_slots.push_back(i);
}

segment_table::segment_table(segment_table&&) noexcept = default;

segment_table& segment_table::operator=(segment_table&&) noexcept = default;

segment_table::~segment_table() = default;

slot_reservation segment_table::reserve(const page_key& key, const page_key* parent) {
  HICACHE_CHECK(parent == nullptr || *parent != key);
  auto& s = *state_;
  if (auto at = s.slot_of.find(key); at != s.slot_of.end())
    return {reserve_status::already_there, at->second, s.slots[at->second].generation, {}};
  auto evicted = std::optional<page_key>{};
  // Counting the new child first is what protects the parent.
  if (parent != nullptr)
    s.add_child(*parent);
  if (s.free_slots.empty()) {
    if (s.victims.empty()) {
      if (parent != nullptr)
        s.drop_child(*parent);
      return {};
    }
    const auto victim = s.victims.begin()->second;
    evicted = s.slots[victim].key;
    s.clear(victim);
    ++s.evicted;
  }
  const auto slot = s.free_slots.front();
  s.free_slots.pop_front();
  auto& entry = s.slots[slot];
  entry.key = key;
  entry.has_parent = parent != nullptr;
  if (parent != nullptr)
    entry.parent = *parent;
  entry.state = slot_state::writing;
  if (++entry.generation == 0)
    entry.generation = 1;
  if (auto orphan = s.orphans.find(key); orphan != s.orphans.end()) {
    entry.children = orphan->second;
    s.orphans.erase(orphan);
  }
  s.slot_of.emplace(key, slot);
  return {reserve_status::reserved, slot, entry.generation, evicted};
}

bool segment_table::publish(uint32_t slot, uint32_t generation) {
  auto& s = *state_;
  if (!s.is_writing(slot, generation))
    return false;
  s.slots[slot].state = slot_state::published;
  s.slots[slot].used = ++s.uses;
  ++s.published;
  s.enter_victims(slot);
  return true;
}

bool segment_table::abort(uint32_t slot, uint32_t generation) {
  if (!state_->is_writing(slot, generation))
    return false;
  state_->clear(slot);
  return true;
}

std::optional<slot_location> segment_table::find(const page_key& key) const {
  if (auto slot = state_->find(key))
    return slot_location{*slot, state_->slots[*slot].generation};
  return std::nullopt;
}

bool segment_table::touch(const page_key& key) {
  auto& s = *state_;
  const auto slot = s.find(key);
  if (!slot)
    return false;
  s.leave_victims(*slot);
  s.slots[*slot].used = ++s.uses;
  s.enter_victims(*slot);
  return true;
}

bool segment_table::remove(const page_key& key) {
  const auto slot = state_->find(key);
  if (!slot)
    return false;
  state_->clear(*slot);
  return true;
}

std::vector<stored_page> segment_table::published(uint32_t first, size_t count) const {
  auto pages = std::vector<stored_page>{};
  const auto& slots = state_->slots;
  for (auto i = size_t{first}; i < slots.size() && pages.size() < count; ++i)
    if (slots[i].state == slot_state::published)
      pages.push_back({slots[i].key, static_cast<uint32_t>(i), slots[i].generation});
  return pages;
}

segment_counters segment_table::counters() const noexcept {
  const auto& s = *state_;
  const auto used = static_cast<uint32_t>(s.slot_of.size());
  return {static_cast<uint32_t>(s.slots.size()) - used, used - s.published, s.published, s.evicted};
}

uint32_t segment_table::slots() const noexcept {
  return static_cast<uint32_t>(state_->slots.size());
}

} // namespace hicache
