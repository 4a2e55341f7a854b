#pragma once

#include "hicache/clock.hpp"
#include "hicache/eviction_policy.hpp"
#include "hicache/ids.hpp"
#include "hicache/policies.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

/// A page to reserve room for.
struct segment_request {
  page_key key;
  /// The preceding page, which is never evicted for its child; none for the first of a sequence.
  std::optional<page_key> parent;
  /// Bytes in the segment, header included.
  uint64_t bytes = 0;
  /// Bytes of the object.
  uint32_t length = 0;
  /// `fingerprint_of` its namespace.
  uint64_t fingerprint = 0;
  /// Whose quota it counts towards; 0 for everyone without a salt.
  uint64_t tenant = 0;
  /// Desired number of copies.
  uint8_t copies = 1;
};

/// Outcome of a reservation.
enum class reserve_status : uint8_t {
  /// The place belongs to the caller until it publishes or aborts.
  reserved,
  /// The page is already stored here or being written.
  already_there,
  /// Nothing can be evicted from the segment, or from the tenant's quota: only pages being written,
  /// held pages, hard pins, pages with a stored child, or the page's parent are left. Or it is
  /// closed.
  full,
};

/// A published page.
struct stored_page {
  page_key key;
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Of the object.
  uint32_t length = 0;
  /// Header included.
  uint64_t bytes = 0;
  uint64_t fingerprint = 0;

  friend bool operator==(const stored_page&, const stored_page&) = default;
};

/// A page that was moved to another place, under another generation.
struct moved_page {
  page_key key;
  uint64_t from = 0;
  uint64_t to = 0;
  /// Header included.
  uint64_t bytes = 0;
  uint32_t generation = 0;

  friend bool operator==(const moved_page&, const moved_page&) = default;
};

/// Answer to reserve. `evicted` and `moved` have happened whatever the status: report them to the
/// index, and move the pages in order, one by one, before anything is written. Places overlap.
struct reservation {
  reserve_status status = reserve_status::full;
  /// Unless full: bytes from the start of the segment, and the generation.
  uint64_t offset = 0;
  uint32_t generation = 0;
  std::vector<stored_page> evicted;
  std::vector<moved_page> moved;
};

/// How a page is protected from eviction. The numbers are part of the wire format.
enum class pin_kind : uint8_t {
  none,
  /// Evicted after all unpinned pages, or once expired.
  soft,
  /// Never evicted, only removed. Bounded by segment_policy::pinned_share.
  hard,
};

/// A published page worth migrating on drain: pinned or recently hit.
struct kept_page {
  stored_page page;
  std::optional<page_key> parent;
  uint64_t tenant = 0;
  pin_kind pin = pin_kind::none;
  /// Expiry of a soft pin.
  time_point pinned_until;
  /// Desired number of copies.
  uint8_t copies = 1;
};

struct segment_counters {
  uint64_t pages = 0;
  /// Of pages published or being written.
  uint64_t used_bytes = 0;
  uint64_t writing = 0;
  /// Bytes of hard pins.
  uint64_t pinned_bytes = 0;
  /// Bytes of held pages, each counted once.
  uint64_t held_bytes = 0;
  /// Totals: pages evicted to make room, and moved to merge holes.
  uint64_t evicted = 0;
  uint64_t moved = 0;
};

/// The owner's bookkeeping of one segment: the place of each page, and the eviction order. Pages
/// may have any size. Pure: neither touches the memory nor reads a clock, and equal calls give
/// equal answers. Not thread-safe. Calls cost O(log pages) per page unless documented otherwise.
///
/// Places: best fit. If there are enough free bytes but no large enough hole, the pages between
/// some holes are moved together, which merges these holes; they are chosen so that the fewest
/// bytes move (O(holes)). So no free byte is lost to fragmentation, except while pages between the
/// holes are being written or held, which do not move. With pages of one size nothing ever moves.
///
/// Holds: a held page keeps its place, generation and bytes until the last hold ends, even if it is
/// removed meanwhile: then it is no longer found, and its place becomes free afterwards.
///
/// Generations: one counter for the segment, incremented by each reservation and move, never 0. A
/// reader that finds a different generation knows that the place was reused.
///
/// Eviction: by policy among the published pages without a child in this segment, so no suffix is
/// ever orphaned. A page counts as a child from its reservation on. A parent need not be stored
/// here. Unpinned pages are evicted before soft pins.
class segment_table {
public:
  /// @pre shares are in (0, 1]; low watermark <= high watermark
  segment_table(uint64_t bytes, segment_policy policy);

  ~segment_table();

  /// Finds room for a page, evicting and moving others. A tenant at its quota loses its own pages.
  /// @pre bytes > 0; the parent is another page
  reservation reserve(const segment_request& wanted, time_point now);

  /// Makes a written page visible, as the most recently used one. A closed segment drops it.
  /// @returns whether it is visible; false, without any change, unless it is written under this
  /// generation
  bool publish(const page_key& key, uint32_t generation);

  /// Reserves nothing until the pages already in the memory have been adopted or passed over.
  /// @pre nothing is reserved or published
  void expect_pages();

  /// Publishes a page that is already in the memory, as the least recently used one; what lies
  /// between it and the one before is free. Ignores quotas.
  /// @returns false, without any change, if its key is already there or the segment is closed
  /// @pre bytes > 0; the parent is another page; no place from `offset` on was adopted or passed
  bool adopt(const segment_request& page, uint64_t offset, uint32_t generation);

  /// There are no more pages to adopt before `end`: the rest up to it is free.
  void pass(uint64_t end);

  /// Gives up a reservation.
  /// @returns false, without any change, unless the page is being written under this generation
  bool abort(const page_key& key, uint32_t generation);

  /// Finds a published page without refreshing its recency.
  std::optional<stored_page> find(const page_key& key) const;

  /// Records a use of a published page.
  /// @returns false if there is none
  bool touch(const page_key& key);

  /// The published pages of a namespace leave before all other unpinned pages, until they are used
  /// again. O(all pages).
  /// @returns how many, and their bytes
  std::pair<uint64_t, uint64_t> evict_first(uint64_t fingerprint);

  /// Pins or unpins a published page; replaces the previous pin.
  /// @param until Expiry of a soft pin.
  /// @returns false if there is no such page, or the share of hard pins has no room for it
  bool pin(const page_key& key, pin_kind kind, time_point until);

  /// Adds a hold to a published page, so that it can be read in place.
  /// @returns its place; nothing if there is none, or the share of held pages has no room for it
  std::optional<stored_page> hold(const page_key& key);

  /// Ends one hold of the page at this place.
  /// @returns false, without any change, unless the place is held under this generation
  bool release(uint64_t offset, uint32_t generation);

  bool is_held(uint64_t offset) const;

  /// Frees a published page, pinned or not, at once or when its last hold ends. Unlike eviction
  /// this may orphan children: they stay, and are protected again once the page returns.
  /// @returns false if the page is not published (only its writer can abort a page being written)
  bool remove(const page_key& key);

  /// From now on nothing is reserved or published, until it is opened again.
  void close() noexcept;

  void open() noexcept;

  bool is_closed() const noexcept;

  /// The published page with its metadata.
  std::optional<kept_page> describe(const page_key& key) const;

  /// Published pages in order of their places, from `offset` on, at most `count`. The next part of
  /// a block report begins after the last page. O(pages returned and skipped).
  std::vector<stored_page> published(uint64_t offset, size_t count) const;

  /// The published pages of a namespace. O(all pages).
  std::vector<page_key> of_namespace(uint64_t fingerprint) const;

  /// Published pages worth migrating before this segment goes away: pinned ones, those used at
  /// least `uses` times since they were stored, and their ancestors; parents first. O(all pages).
  std::vector<kept_page> worth_keeping(uint64_t uses) const;

  segment_counters counters() const noexcept;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
