#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "tests/cache/ideal_cache.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace hicache::test {

/// What became of the pages of many prompts.
struct replay_counts {
  uint64_t pages = 0;
  /// Served from the cache, and how many of these came from L2.
  uint64_t hits = 0;
  uint64_t loads = 0;
  /// Copied from L1 to L2, and from there to L3.
  uint64_t writes = 0;
  uint64_t backups = 0;
  /// Pages of L2 that hold what L1 has too, after the last prompt.
  uint64_t copies = 0;

  /// Writes per page that came to L1.
  double writes_per_page() const {
    return static_cast<double>(writes) / static_cast<double>(pages - hits + loads);
  }
};

/// Options of a cache whose page is one token, which stands for a page of any size.
tree_options tiers(write_policy write, uint64_t l1_pages, uint64_t l2_pages);

/// Serves the prompts one after the other, as an engine does, from a cache without bytes whose
/// copies are done when a step asks.
replay_counts replay_prompts(const tree_options& options, const std::vector<page_string>& prompts);

/// Hits of the ideal cache.
uint64_t ideal_hits(const ideal_sizes& sizes, const eviction_policy_ptr& policy,
                    const std::vector<page_string>& prompts);

/// What each write policy keeps at best in these tiers.
ideal_sizes ideal_of(const tree_options& options);

/// The prompts of a trace of the Mooncake paper in pages of `page_tokens`: the first `limit`
/// requests. @returns nothing if there is no such file.
std::vector<page_string> read_trace(const std::string& path, size_t limit, uint64_t page_tokens);

/// Without those that do not fit into so many pages, which an engine refuses.
std::vector<page_string> fitting(std::vector<page_string> prompts, uint64_t l1_pages);

/// Different pages of the prompts. A page is different if what comes before it is.
uint64_t count_unique(const std::vector<page_string>& prompts);

} // namespace hicache::test
