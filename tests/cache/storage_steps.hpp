#pragma once

#include "tests/cache/tree_driver.hpp"

#include <algorithm>
#include <vector>

/// What the tests of L3 do with a tree_driver. Page 4, threshold 4 tokens.
namespace hicache::test {

inline const auto A = range(1, 17);
inline const auto B = range(101, 117);
inline const auto C = range(201, 217);

using hit = tree_driver::hit;
using counts = std::vector<uint64_t>;

/// A tree with L3 of 16 pages on each tier, of which 8 are set aside for prefetches.
inline tree_options with_storage(prefetch_policy policy) {
  return {.page_size = 4,
          .l1_pages = 16,
          .l2_pages = 16,
          .prefetch_reserve_pages = 8,
          .layers = 2,
          .prefetch = {.policy = policy, .threshold_tokens = 4},
          .storage_attached = true};
}

inline std::vector<page_key> names_of(const tokens_t& tokens, const cache_namespace& ns = {}) {
  const auto seed = namespace_seed(ns);
  return hash_pages(tokens, 4, seed ? &*seed : nullptr);
}

inline void put_in_store(tree_driver& d, const tokens_t& tokens, const cache_namespace& ns = {}) {
  for (const auto& key : names_of(tokens, ns))
    d.store[key] = first_word(key);
}

inline bool is_in_store(const tree_driver& d, const tokens_t& tokens) {
  return std::ranges::all_of(names_of(tokens),
                             [&](const page_key& key) { return d.store.contains(key); });
}

/// @returns the tokens that are looked for.
inline uint64_t prefetch(tree_driver& d, request_id request) {
  const auto result = d.tree.prefetch(request);
  d.settle();
  return result->tokens;
}

/// @returns whether the request may run.
inline bool schedule(tree_driver& d, request_id request) {
  const auto result = d.tree.schedule(request);
  d.settle();
  return result->ready;
}

} // namespace hicache::test
