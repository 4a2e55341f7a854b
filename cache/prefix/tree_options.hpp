#pragma once

#include "cache/radix/page_allocator.hpp"
#include "hicache/policies.hpp"
#include "messages/storage_change.hpp"

#include <cstdint>
#include <string>

namespace hicache {

/// Background eviction in L1: when fewer than `low` pages are free, a step evicts until `high` are,
/// so that requests need not wait for an eviction. 0 disables it.
struct watermarks {
  uint32_t low_pages = 0;
  uint32_t high_pages = 0;

  friend bool operator==(const watermarks&, const watermarks&) = default;
};

/// Fixed settings of a cache. Equal on all ranks.
struct tree_options {
  /// Tokens per page, a power of two.
  uint32_t page_size = 64;
  /// Usable L1 pages, not counting the padding page.
  uint32_t l1_pages = 0;
  /// Usable L2 pages, including the staging pool; 0 disables L2 and thus L3.
  uint32_t l2_pages = 0;
  /// Size of the prefetcher's staging pool in L2, at most l2_pages.
  uint32_t prefetch_reserve_pages = 0;
  /// Layers of the model, for layer_progress.
  uint32_t layers = 1;
  write_policy write = write_policy::write_through;
  prefetch_settings prefetch{};
  /// A shorter L2 part is recomputed rather than loaded (SGLang's default).
  uint32_t load_back_threshold_tokens = 10;
  /// True if L3 is attached from the start: pages are hashed, backed up and prefetched.
  bool storage_attached = false;
  /// Its name, for provenance.
  std::string storage_backend{};
  /// As in storage_change.
  bool storage_exports_l2 = false;
  /// L2 pages that may wait for their backup; beyond it the oldest backups are dropped.
  uint64_t backup_limit_pages = UINT64_MAX;
  watermarks l1_room{};
  /// Eviction order; not null.
  eviction_policy_ptr eviction = lru_policy();
  /// Allocation order of the free pages of L1 and of L2.
  page_order order = page_order::newest_first;
  /// Units are pairs of adjacent tokens, as speculative decoding with EAGLE needs: n tokens are n -
  /// 1 units, and a page's content depends on the token after it.
  bool bigram = false;
  /// Pages that the pins of one tenant (salt) may keep; should be a fraction of the largest tier.
  uint64_t pin_budget_pages = 0;
  /// A match or an insert that reaches the end of a pin restarts the pin's ttl.
  bool pin_refresh = false;
  /// Collect cache events for take_changes().
  bool events = false;
  /// Nodes that eviction split are joined again, see radix_tree::join_nodes. False only in op logs
  /// of versions that did not, whose node ids would differ.
  bool join_nodes = true;
  /// False: no prefix is shared; every request keeps its own pages until release (SGLang's
  /// ChunkCache, --disable-radix-cache).
  bool share_prefixes = true;
};

} // namespace hicache
