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

/// A page to find room for.
struct segment_request {
  page_key key;
  /// The page before, which is never evicted for its child; none for the first of a sequence.
  std::optional<page_key> parent;
  /// Bytes of the segment that it takes, header included.
  uint64_t bytes = 0;
  /// Bytes of the object, for those who read it.
  uint32_t length = 0;
  /// `fingerprint_of` the namespace it belongs to.
  uint64_t fingerprint = 0;
  /// Whose quota it counts for; 0 is everybody without a salt.
  uint64_t tenant = 0;
  /// Copies of the page that there shall be.
  uint8_t copies = 1;
};

/// What became of a request for room.
enum class reserve_status : uint8_t {
  /// The place is the caller's until it publishes or aborts.
  reserved,
  /// The page is stored here, or being written, already: nothing to write.
  already_there,
  /// All room is taken by pages being written, held pages, hard pins, pages with a stored child, or
  /// the parent of the page; or the tenant's quota by such; or the segment is closed.
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

/// A page that gave way: it is at another place, under another generation, from now on.
struct moved_page {
  page_key key;
  uint64_t from = 0;
  uint64_t to = 0;
  /// Header included.
  uint64_t bytes = 0;
  uint32_t generation = 0;

  friend bool operator==(const moved_page&, const moved_page&) = default;
};

/// Answer to reserve. What `evicted` and `moved` say has happened whatever the status: the index
/// wants to know, and pages have to be moved one after the other, in order, before anything is
/// written. Places overlap.
struct reservation {
  reserve_status status = reserve_status::full;
  /// Unless full: bytes from the start of the segment, and the generation.
  uint64_t offset = 0;
  uint32_t generation = 0;
  std::vector<stored_page> evicted;
  std::vector<moved_page> moved;
};

/// How a page is kept from eviction. The numbers travel between members.
enum class pin_kind : uint8_t {
  none,
  /// Goes when everything else is gone, or when its time is over.
  soft,
  /// Never goes, unless removed. Bounded by segment_policy::pinned_share.
  hard,
};

/// A published page that somebody would miss.
struct kept_page {
  stored_page page;
  std::optional<page_key> parent;
  uint64_t tenant = 0;
  pin_kind pin = pin_kind::none;
  /// When a soft pin ends.
  time_point pinned_until;
  /// Copies that there shall be.
  uint8_t copies = 1;
};

struct segment_counters {
  uint64_t pages = 0;
  /// Of pages published and being written.
  uint64_t used_bytes = 0;
  uint64_t writing = 0;
  /// Bytes of hard pins.
  uint64_t pinned_bytes = 0;
  /// Bytes of pages that somebody holds, each counted once.
  uint64_t held_bytes = 0;
  /// Since the beginning: pages evicted to make room, and moved to make holes one.
  uint64_t evicted = 0;
  uint64_t moved = 0;
};

/// The owner's bookkeeping of one segment: which page is where, and who goes when. Pages may have
/// any size. Pure: neither touches the memory nor reads a clock, and equal calls give equal
/// answers. Not thread-safe. Calls cost O(log pages) for each page that they concern, but for those
/// that say otherwise.
///
/// Places: best fit. Where the free bytes would do but no hole is large enough, pages between some
/// holes are moved together, which makes these holes one: the holes are chosen so that the fewest
/// bytes move (costs O(holes)). So no free byte is lost to fragmentation, but for as long as pages
/// that are being written or held, which do not move, lie between the holes. With pages of one size
/// nothing ever moves.
///
/// Holds: a held page keeps its place, its generation and its bytes until the last hold ends, also
/// if it is removed meanwhile: then nobody finds it any more, and its place is free afterwards.
///
/// Generations: one count for the segment, raised by each reservation and move, never 0. A reader
/// that finds another one than it was told knows that the place was reused.
///
/// Eviction: by policy among the published pages without a child in this segment, so no suffix is
/// ever orphaned. A page counts as a child from its reservation on. A parent need not be stored
/// here. Pages without a pin go before those with a soft one.
class segment_table {
public:
  /// @pre shares are above 0 and at most 1, the low watermark no higher than the high one
  segment_table(uint64_t bytes, segment_policy policy);

  segment_table(segment_table&&) noexcept;

  segment_table& operator=(segment_table&&) noexcept;

  ~segment_table();

  /// Finds room for a page; evicts and moves others if it has to. A tenant that has its share loses
  /// pages of its own.
  /// @pre bytes > 0; the parent is another page
  reservation reserve(const segment_request& wanted, time_point now);

  /// Makes a written page visible, as the one used last. In a closed segment it goes instead.
  /// @returns whether it is visible; false, and nothing changes, if it is not being written under
  /// this generation
  bool publish(const page_key& key, uint32_t generation);

  /// The memory holds pages that nobody knows yet: there is no room at all until they are adopted,
  /// or passed over.
  /// @pre nothing is reserved or published
  void expect_pages();

  /// Publishes a page that the memory holds already, as one used before all others; what lies
  /// between it and the one before is free. No quota keeps it out.
  /// @returns false, and changes nothing, if its key is there already, or the segment is closed
  /// @pre bytes > 0; the parent is another page; no place from `offset` on was adopted or passed
  bool adopt(const segment_request& page, uint64_t offset, uint32_t generation);

  /// There are no more pages to adopt before `end`: what lies there is free.
  void pass(uint64_t end);

  /// Gives back a place that will not be published.
  /// @returns false, and changes nothing, unless it is being written under this generation
  bool abort(const page_key& key, uint32_t generation);

  /// The published page, without refreshing it.
  std::optional<stored_page> find(const page_key& key) const;

  /// Notes a use of a published page.
  /// @returns false if there is none
  bool touch(const page_key& key);

  /// Pins a published page, or takes its pin away; a pin replaces the one before.
  /// @param until When a soft pin ends.
  /// @returns false if there is no such page, or the share of hard pins has no room for it
  bool pin(const page_key& key, pin_kind kind, time_point until);

  /// Holds a published page once more, so that whoever reads it in place reads this page.
  /// @returns where it is; nothing if there is none, or the share of held pages has no room for it
  std::optional<stored_page> hold(const page_key& key);

  /// Ends one hold of the page at this place.
  /// @returns false, and changes nothing, unless the place is held under this generation
  bool release(uint64_t offset, uint32_t generation);

  /// Whether somebody holds the page at this place.
  bool is_held(uint64_t offset) const;

  /// Frees a published page on request, pinned or not, at once or when nobody holds it. Unlike
  /// eviction this may orphan the page's children: they stay, and are protected as children again
  /// once the page returns.
  /// @returns false if the page is not published (a page being written can only be aborted by its
  /// writer)
  bool remove(const page_key& key);

  /// From now on nothing is reserved or published any more, until it is opened again.
  void close() noexcept;

  void open() noexcept;

  bool is_closed() const noexcept;

  /// The published page with what is known of it beside its place.
  std::optional<kept_page> describe(const page_key& key) const;

  /// Published pages in order of their places, from `offset` on, at most `count`. The next part of
  /// a block report begins behind the last page. Costs the pages it returns and passes.
  std::vector<stored_page> published(uint64_t offset, size_t count) const;

  /// The published pages of a namespace. Costs all pages.
  std::vector<page_key> of_namespace(uint64_t fingerprint) const;

  /// Published pages that are worth moving elsewhere before this segment goes: those that are
  /// pinned, and those that were used at least `uses` times since they were stored; with all pages
  /// before them; parents first. Costs all pages.
  std::vector<kept_page> worth_keeping(uint64_t uses) const;

  segment_counters counters() const noexcept;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
