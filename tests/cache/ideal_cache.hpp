#pragma once

#include "hicache/eviction_policy.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace hicache::test {

/// The pages of a prompt: each number stands for the content of one page.
using page_string = std::vector<uint32_t>;

/// How much of a cache of pages is fast, and what is worth keeping in the rest.
struct ideal_sizes {
  uint64_t fast_pages = 0;
  uint64_t slow_pages = 0;
  /// Uses below which a page that leaves the fast part is forgotten.
  uint64_t least_uses = 0;
};

/// What a cache keeps at best. Page by page, the first in the policy's order leaves the fast part,
/// and the first of all of the rest is forgotten; of each part those without a page of that part
/// below them. Copies, locks and time do not exist; only the prompt at hand stays.
class ideal_cache {
public:
  ideal_cache(const ideal_sizes& sizes, eviction_policy_ptr policy);

  /// Serves a prompt, which is then cached, if it fits. @returns how many of its pages were.
  uint64_t serve(const page_string& prompt);

private:
  using number = uint32_t;
  using place = std::tuple<eviction_rank, number>;

  struct cached_page {
    number parent = 0;
    uint32_t content = 0;
    uint32_t children = 0;
    uint32_t fast_children = 0;
    bool is_fast = false;
    bool is_busy = false;
    node_use use;
    /// Its place among the leaves of its part.
    std::optional<place> leaf{};
  };

  void set_fast(number each, bool is_fast);
  void update(number each);
  void forget(number each);
  void forget_below(number each);
  void evict();

  ideal_sizes sizes_;
  eviction_policy_ptr policy_;
  /// The first stands for the beginning of all prompts.
  std::vector<cached_page> pages_ = std::vector<cached_page>(1);
  std::vector<number> unused_;
  absl::flat_hash_map<std::pair<number, uint32_t>, number> children_;
  std::set<place> fast_leaves_;
  std::set<place> slow_leaves_;
  uint64_t fast_used_ = 0;
  uint64_t slow_used_ = 0;
  uint64_t now_ = 0;
};

} // namespace hicache::test
