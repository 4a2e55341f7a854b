#pragma once

#include "cache/radix/page_allocator.hpp"
#include "hicache/policies.hpp"
#include "messages/storage_change.hpp"

#include <cstdint>
#include <string>

namespace hicache {

/// Room that steps make in L1 ahead of requests, so that none waits for an eviction: as soon as
/// fewer than `low` pages are free, so many are evicted that `high` are. 0 makes no room ahead.
struct watermarks {
  uint32_t low_pages = 0;
  uint32_t high_pages = 0;

  friend bool operator==(const watermarks&, const watermarks&) = default;
};

/// Fixed settings of a cache. Equal on all ranks.
struct tree_options {
  /// Tokens per page, a power of two.
  uint32_t page_size = 64;
  /// Usable L1 pages; the padding page comes on top.
  uint32_t l1_pages = 0;
  /// Usable L2 pages, the prefetch reserve included; 0 switches L2 (and with it L3) off.
  uint32_t l2_pages = 0;
  /// L2 pages set aside for the prefetcher, at most l2_pages.
  uint32_t prefetch_reserve_pages = 0;
  /// Layers of the model, for layer_progress.
  uint32_t layers = 1;
  write_policy write = write_policy::write_through;
  prefetch_settings prefetch{};
  /// A host part shorter than this is recomputed rather than loaded (SGLang's default).
  uint32_t load_back_threshold_tokens = 10;
  /// True if there is an L3 from the start: pages are hashed, backed up and prefetched.
  bool storage_attached = false;
  /// Its name, for provenance.
  std::string storage_backend{};
  /// As of storage_change.
  bool storage_exports_l2 = false;
  /// L2 pages that may wait for their backup; beyond it the oldest backups are dropped.
  uint64_t backup_limit_pages = UINT64_MAX;
  watermarks l1_room{};
  /// Who goes first when room is needed; not null.
  eviction_policy_ptr eviction = lru_policy();
  /// In which order the free pages of L1, and of L2, are handed out.
  page_order order = page_order::newest_first;
  /// The unit is a pair of neighbouring tokens instead of a token, as speculative decoding with
  /// EAGLE needs it: n tokens are n - 1 units, and a page's content depends on the token after it.
  bool bigram = false;
  /// Pages that the pins of one tenant (one salt) may keep; a share of the largest tier is sane.
  uint64_t pin_budget_pages = 0;
  /// A match or an insert that reaches the end of a pin begins the pin's time anew.
  bool pin_refresh = false;
  /// Collect cache events for take_events().
  bool events = false;
  /// False: no prefix is shared; every request keeps its own pages until release (SGLang's
  /// ChunkCache, --disable-radix-cache).
  bool share_prefixes = true;
};

} // namespace hicache
