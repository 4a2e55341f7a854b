#include "cache/store/segment_table.hpp"

#include "base/check.hpp"
#include "cache/store/extent_allocator.hpp"

#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace hicache {

namespace {

/// Number of an entry; reused after its page is removed.
using entry_index = uint32_t;

struct page_entry {
  page_key key;
  std::optional<page_key> parent;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t fingerprint = 0;
  uint64_t tenant = 0;
  node_use use;
  /// Pages in the segment, being written or published, whose parent this is.
  uint32_t children = 0;
  uint32_t holds = 0;
  uint32_t generation = 0;
  uint32_t length = 0;
  uint8_t copies = 1;
  bool is_published = false;
  /// Its namespace has ended: see evict_first.
  bool is_left = false;
  pin_kind pin = pin_kind::none;
  /// Of a soft pin.
  time_point pinned_until;
};

/// A page's position in the eviction order.
struct victim {
  bool is_pinned = false;
  bool is_in_use = true;
  eviction_rank rank;
  entry_index entry = 0;

  friend auto operator<=>(const victim&, const victim&) = default;
};

struct tenant_entry {
  uint64_t bytes = 0;
  absl::btree_set<victim> victims;
};

uint64_t share_of(uint64_t bytes, double share) {
  return share >= 1 ? bytes : static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

} // namespace

/// Invariants:
/// - `entry_of` holds exactly the pages that can be found. `places` holds the offset of each of
/// them, and of each removed page that is still held.
/// - `writing` holds exactly the offsets of pages in `entry_of` that are not published, and `held`
/// those of pages with holds.
/// - `victims`, and the victims of the page's tenant, hold exactly the published pages without
/// children that have no hard pin and no holds.
/// - `soft_pins` holds exactly (end, entry) of the soft pins.
/// - `orphans` holds the number of children of each absent parent that has some.
/// - From `scanned` on nothing is free, and no page is known.
struct segment_table::state {
  segment_policy policy;
  extent_allocator extents;
  std::vector<page_entry> entries;
  std::vector<entry_index> free_entries;
  absl::flat_hash_map<page_key, entry_index, std::hash<page_key>> entry_of;
  absl::btree_map<uint64_t, entry_index> places;
  absl::btree_set<uint64_t> writing;
  absl::btree_set<uint64_t> held;
  absl::flat_hash_map<page_key, uint32_t, std::hash<page_key>> orphans;
  absl::btree_set<victim> victims;
  absl::btree_set<std::pair<time_point, entry_index>> soft_pins;
  absl::flat_hash_map<uint64_t, tenant_entry> tenants;
  uint64_t scanned;
  uint64_t uses = 0;
  uint64_t pinned_bytes = 0;
  uint64_t held_bytes = 0;
  uint64_t evicted = 0;
  uint64_t moved = 0;
  uint32_t last_generation = 0;
  bool is_closed = false;

  state(uint64_t bytes, segment_policy how)
    : policy(std::move(how)), extents(bytes), scanned(bytes) {}

  uint64_t used() const { return scanned - extents.free(); }

  uint32_t next_generation() {
    if (++last_generation == 0)
      last_generation = 1;
    return last_generation;
  }

  // -- order of eviction ------------------------------------------------------

  victim victim_of(entry_index i) const {
    const auto& page = entries[i];
    return {page.pin == pin_kind::soft, !page.is_left, policy.eviction->rank(page.use), i};
  }

  /// Call before and after a change that affects whether or when a page is evicted.
  void leave_victims(entry_index i) {
    if (victims.erase(victim_of(i)) != 0)
      tenants.at(entries[i].tenant).victims.erase(victim_of(i));
  }

  void enter_victims(entry_index i) {
    const auto& page = entries[i];
    if (!page.is_published || page.children > 0 || page.holds > 0 || page.pin == pin_kind::hard)
      return;
    victims.insert(victim_of(i));
    tenants.at(page.tenant).victims.insert(victim_of(i));
  }

  void add_child(const page_key& parent) {
    if (const auto at = entry_of.find(parent); at != entry_of.end()) {
      leave_victims(at->second);
      ++entries[at->second].children;
    } else {
      ++orphans[parent];
    }
  }

  void drop_child(const page_key& parent) {
    if (const auto at = entry_of.find(parent); at != entry_of.end()) {
      HICACHE_CHECK(entries[at->second].children > 0);
      --entries[at->second].children;
      enter_victims(at->second);
    } else {
      const auto orphan = orphans.find(parent);
      HICACHE_CHECK(orphan != orphans.end());
      if (--orphan->second == 0)
        orphans.erase(orphan);
    }
  }

  // -- pins -------------------------------------------------------------------

  void set_pin(entry_index i, pin_kind kind, time_point until) {
    auto& page = entries[i];
    leave_victims(i);
    if (page.pin == pin_kind::soft)
      soft_pins.erase({page.pinned_until, i});
    if (page.pin == pin_kind::hard)
      pinned_bytes -= page.bytes;
    page.pin = kind;
    page.pinned_until = until;
    if (kind == pin_kind::soft)
      soft_pins.insert({until, i});
    if (kind == pin_kind::hard)
      pinned_bytes += page.bytes;
    enter_victims(i);
  }

  void end_soft_pins(time_point now) {
    while (!soft_pins.empty() && soft_pins.begin()->first <= now)
      set_pin(soft_pins.begin()->second, pin_kind::none, {});
  }

  // -- pages ------------------------------------------------------------------

  entry_index add(const segment_request& wanted, uint64_t offset, uint32_t generation) {
    auto i = static_cast<entry_index>(entries.size());
    if (free_entries.empty()) {
      entries.emplace_back();
    } else {
      i = free_entries.back();
      free_entries.pop_back();
    }
    auto& page = entries[i];
    page = {};
    page.key = wanted.key;
    page.parent = wanted.parent;
    page.offset = offset;
    page.bytes = wanted.bytes;
    page.length = wanted.length;
    page.fingerprint = wanted.fingerprint;
    page.tenant = wanted.tenant;
    page.copies = wanted.copies;
    page.generation = generation;
    if (const auto orphan = orphans.find(wanted.key); orphan != orphans.end()) {
      page.children = orphan->second;
      orphans.erase(orphan);
    }
    entry_of.emplace(wanted.key, i);
    places.emplace(offset, i);
    writing.insert(offset);
    tenants[wanted.tenant].bytes += wanted.bytes;
    return i;
  }

  /// Removes a page, published or not, and frees its place unless it is held.
  void clear(entry_index i) {
    set_pin(i, pin_kind::none, {});
    leave_victims(i);
    auto& page = entries[i];
    page.is_published = false;
    entry_of.erase(page.key);
    writing.erase(page.offset);
    if (page.children > 0)
      orphans.emplace(page.key, std::exchange(page.children, 0));
    const auto parent = std::exchange(page.parent, std::nullopt);
    if (page.holds == 0)
      free_place(i);
    if (parent)
      drop_child(*parent);
  }

  void free_place(entry_index i) {
    const auto& page = entries[i];
    places.erase(page.offset);
    extents.give_back(page.offset, page.bytes);
    const auto tenant = tenants.find(page.tenant);
    tenant->second.bytes -= page.bytes;
    if (tenant->second.bytes == 0)
      tenants.erase(tenant);
    free_entries.push_back(i);
  }

  std::optional<entry_index> being_written(const page_key& key, uint32_t generation) const {
    const auto at = entry_of.find(key);
    if (at == entry_of.end() || entries[at->second].is_published
        || entries[at->second].generation != generation)
      return std::nullopt;
    return at->second;
  }

  std::optional<entry_index> find(const page_key& key) const {
    const auto at = entry_of.find(key);
    const auto is_there = at != entry_of.end() && entries[at->second].is_published;
    return is_there ? std::optional{at->second} : std::nullopt;
  }

  stored_page describe(entry_index i) const {
    const auto& page = entries[i];
    return {page.key, page.offset, page.generation, page.length, page.bytes, page.fingerprint};
  }

  kept_page describe_all(entry_index i) const {
    const auto& page = entries[i];
    return {describe(i), page.parent, page.tenant, page.pin, page.pinned_until, page.copies};
  }

  // -- room -------------------------------------------------------------------

  void evict(entry_index i, reservation& answer) {
    answer.evicted.push_back(describe(i));
    ++evicted;
    clear(i);
  }

  /// Evicts the tenant's own pages until it has room for one more.
  bool keep_to_quota(const segment_request& wanted, reservation& answer) {
    const auto quota = share_of(extents.capacity(), policy.tenant_share);
    if (wanted.bytes > quota)
      return false;
    for (auto at = tenants.find(wanted.tenant);
         at != tenants.end() && at->second.bytes > quota - wanted.bytes;
         at = tenants.find(wanted.tenant)) {
      if (at->second.victims.empty())
        return false;
      evict(at->second.victims.begin()->entry, answer);
    }
    return true;
  }

  void keep_below_watermark(uint64_t bytes, reservation& answer) {
    if (used() + bytes <= share_of(extents.capacity(), policy.high_watermark))
      return;
    const auto low = share_of(extents.capacity(), policy.low_watermark);
    while (used() + bytes > low && !victims.empty() && !victims.begin()->is_pinned)
      evict(victims.begin()->entry, answer);
  }

  std::optional<uint64_t> make_room(uint64_t bytes, reservation& answer) {
    for (;;) {
      if (const auto offset = extents.take(bytes))
        return offset;
      if (extents.free() >= bytes && join_holes(bytes, answer))
        return extents.take(bytes);
      if (victims.empty())
        return std::nullopt;
      evict(victims.begin()->entry, answer);
    }
  }

  /// Whether an immovable page begins in [begin, end).
  bool is_fixed_between(uint64_t begin, uint64_t end) const {
    const auto is_in = [begin, end](const absl::btree_set<uint64_t>& offsets) {
      const auto at = offsets.lower_bound(begin);
      return at != offsets.end() && *at < end;
    };
    return is_in(writing) || is_in(held);
  }

  /// Moves pages together to make a hole of `bytes`.
  /// @returns false if pages that are being written or held prevent it
  bool join_holes(uint64_t bytes, reservation& answer) {
    const auto window = extents.find_window(
      bytes, [this](uint64_t begin, uint64_t end) { return is_fixed_between(begin, end); });
    if (!window)
      return false;
    for (auto hole = extents.holes().lower_bound(window->begin);
         hole != extents.holes().end() && hole->first < window->end;
         hole = extents.holes().lower_bound(window->begin))
      extents.take_hole(hole->first);
    auto to = window->begin;
    for (auto at = places.lower_bound(window->begin); at != places.end() && at->first < window->end;
         at = places.lower_bound(to)) {
      const auto i = at->second;
      auto& page = entries[i];
      page.generation = next_generation();
      answer.moved.push_back({page.key, page.offset, to, page.bytes, page.generation});
      ++moved;
      places.erase(at);
      page.offset = to;
      places.emplace(to, i);
      to += page.bytes;
    }
    extents.give_back(to, window->end - to);
    return true;
  }
};

segment_table::segment_table(uint64_t bytes, segment_policy policy) {
  const auto is_share = [](double x) { return x > 0 && x <= 1; };
  HICACHE_CHECK(policy.eviction != nullptr && is_share(policy.high_watermark)
                && is_share(policy.low_watermark) && policy.low_watermark <= policy.high_watermark
                && is_share(policy.pinned_share) && is_share(policy.held_share)
                && is_share(policy.tenant_share));
  state_ = std::make_unique<state>(bytes, std::move(policy));
}

segment_table::~segment_table() = default;

reservation segment_table::reserve(const segment_request& wanted, time_point now) {
  HICACHE_CHECK(wanted.bytes > 0 && wanted.parent != wanted.key);
  auto& s = *state_;
  if (const auto at = s.entry_of.find(wanted.key); at != s.entry_of.end()) {
    const auto& there = s.entries[at->second];
    return {reserve_status::already_there, there.offset, there.generation, {}, {}};
  }
  auto answer = reservation{};
  if (s.is_closed || wanted.bytes > s.extents.capacity())
    return answer;
  s.end_soft_pins(now);
  // Counting the new child first protects the parent from eviction.
  if (wanted.parent)
    s.add_child(*wanted.parent);
  auto offset = std::optional<uint64_t>{};
  if (s.keep_to_quota(wanted, answer)) {
    s.keep_below_watermark(wanted.bytes, answer);
    offset = s.make_room(wanted.bytes, answer);
  }
  if (!offset) {
    if (wanted.parent)
      s.drop_child(*wanted.parent);
    return answer;
  }
  answer.status = reserve_status::reserved;
  answer.offset = *offset;
  answer.generation = s.next_generation();
  s.add(wanted, *offset, answer.generation);
  return answer;
}

bool segment_table::publish(const page_key& key, uint32_t generation) {
  auto& s = *state_;
  const auto i = s.being_written(key, generation);
  if (!i)
    return false;
  if (s.is_closed) {
    s.clear(*i);
    return false;
  }
  auto& page = s.entries[*i];
  page.is_published = true;
  page.use.created = page.use.last_access = ++s.uses;
  s.writing.erase(page.offset);
  s.enter_victims(*i);
  return true;
}

void segment_table::expect_pages() {
  auto& s = *state_;
  HICACHE_CHECK(s.extents.free() == s.extents.capacity());
  s.extents.take_hole(0);
  s.scanned = 0;
}

bool segment_table::adopt(const segment_request& page, uint64_t offset, uint32_t generation) {
  auto& s = *state_;
  HICACHE_CHECK(page.bytes > 0 && page.parent != page.key && offset >= s.scanned
                && page.bytes <= s.extents.capacity() - offset);
  if (s.is_closed || s.entry_of.contains(page.key))
    return false;
  pass(offset);
  if (page.parent)
    s.add_child(*page.parent);
  const auto i = s.add(page, offset, generation);
  s.scanned += page.bytes;
  s.last_generation = std::max(s.last_generation, generation);
  s.entries[i].is_published = true;
  s.writing.erase(offset);
  s.enter_victims(i);
  return true;
}

void segment_table::pass(uint64_t end) {
  auto& s = *state_;
  HICACHE_CHECK(end <= s.extents.capacity());
  if (end > s.scanned)
    s.extents.give_back(s.scanned, end - s.scanned);
  s.scanned = std::max(s.scanned, end);
}

bool segment_table::abort(const page_key& key, uint32_t generation) {
  const auto i = state_->being_written(key, generation);
  if (i)
    state_->clear(*i);
  return i.has_value();
}

std::optional<stored_page> segment_table::find(const page_key& key) const {
  const auto i = state_->find(key);
  return i ? std::optional{state_->describe(*i)} : std::nullopt;
}

bool segment_table::touch(const page_key& key) {
  auto& s = *state_;
  const auto i = s.find(key);
  if (!i)
    return false;
  s.leave_victims(*i);
  s.entries[*i].use.last_access = ++s.uses;
  ++s.entries[*i].use.hits;
  s.entries[*i].is_left = false;
  s.enter_victims(*i);
  return true;
}

std::pair<uint64_t, uint64_t> segment_table::evict_first(uint64_t fingerprint) {
  auto& s = *state_;
  auto [pages, bytes] = std::pair<uint64_t, uint64_t>{};
  for (const auto& [offset, i] : s.places) {
    auto& page = s.entries[i];
    if (!page.is_published || page.fingerprint != fingerprint)
      continue;
    s.leave_victims(i);
    page.is_left = true;
    s.enter_victims(i);
    ++pages;
    bytes += page.bytes;
  }
  return {pages, bytes};
}

bool segment_table::pin(const page_key& key, pin_kind kind, time_point until) {
  auto& s = *state_;
  const auto i = s.find(key);
  if (!i)
    return false;
  const auto& page = s.entries[*i];
  if (kind == pin_kind::hard && page.pin != pin_kind::hard
      && s.pinned_bytes + page.bytes > share_of(s.extents.capacity(), s.policy.pinned_share))
    return false;
  s.set_pin(*i, kind, until);
  return true;
}

std::optional<stored_page> segment_table::hold(const page_key& key) {
  auto& s = *state_;
  const auto i = s.find(key);
  if (!i)
    return std::nullopt;
  auto& page = s.entries[*i];
  if (page.holds == 0) {
    if (s.held_bytes + page.bytes > share_of(s.extents.capacity(), s.policy.held_share))
      return std::nullopt;
    s.leave_victims(*i);
    s.held_bytes += page.bytes;
    s.held.insert(page.offset);
  }
  ++page.holds;
  return s.describe(*i);
}

bool segment_table::release(uint64_t offset, uint32_t generation) {
  auto& s = *state_;
  const auto at = s.places.find(offset);
  if (at == s.places.end())
    return false;
  const auto i = at->second;
  auto& page = s.entries[i];
  if (page.holds == 0 || page.generation != generation)
    return false;
  if (--page.holds > 0)
    return true;
  s.held_bytes -= page.bytes;
  s.held.erase(offset);
  if (page.is_published)
    s.enter_victims(i);
  else
    s.free_place(i);
  return true;
}

bool segment_table::is_held(uint64_t offset) const {
  return state_->held.contains(offset);
}

bool segment_table::remove(const page_key& key) {
  const auto i = state_->find(key);
  if (i)
    state_->clear(*i);
  return i.has_value();
}

void segment_table::close() noexcept {
  state_->is_closed = true;
}

void segment_table::open() noexcept {
  state_->is_closed = false;
}

bool segment_table::is_closed() const noexcept {
  return state_->is_closed;
}

std::optional<kept_page> segment_table::describe(const page_key& key) const {
  const auto i = state_->find(key);
  return i ? std::optional{state_->describe_all(*i)} : std::nullopt;
}

std::vector<stored_page> segment_table::published(uint64_t offset, size_t count) const {
  auto pages = std::vector<stored_page>{};
  const auto& places = state_->places;
  for (auto at = places.lower_bound(offset); at != places.end() && pages.size() < count; ++at)
    if (state_->entries[at->second].is_published)
      pages.push_back(state_->describe(at->second));
  return pages;
}

std::vector<page_key> segment_table::of_namespace(uint64_t fingerprint) const {
  auto keys = std::vector<page_key>{};
  for (const auto& [offset, i] : state_->places)
    if (const auto& page = state_->entries[i]; page.is_published && page.fingerprint == fingerprint)
      keys.push_back(page.key);
  return keys;
}

std::vector<kept_page> segment_table::worth_keeping(uint64_t uses) const {
  const auto& s = *state_;
  auto kept = std::vector<kept_page>{};
  auto seen = std::vector<bool>(s.entries.size());
  auto path = std::vector<entry_index>{};
  for (const auto& [offset, first] : s.places) {
    const auto& candidate = s.entries[first];
    if (!candidate.is_published || (candidate.pin == pin_kind::none && candidate.use.hits < uses))
      continue;
    for (auto i = std::optional{first}; i && !seen[*i];) {
      seen[*i] = true;
      path.push_back(*i);
      const auto& parent = s.entries[*i].parent;
      i = parent ? s.find(*parent) : std::nullopt;
    }
    for (; !path.empty(); path.pop_back())
      kept.push_back(s.describe_all(path.back()));
  }
  return kept;
}

segment_counters segment_table::counters() const noexcept {
  const auto& s = *state_;
  return {s.entry_of.size() - s.writing.size(),
          s.used(),
          s.writing.size(),
          s.pinned_bytes,
          s.held_bytes,
          s.evicted,
          s.moved};
}

} // namespace hicache
