#pragma once

#include "hicache/eviction_policy.hpp"

#include <cstdint>

/// Policies that a configuration selects by name.
namespace hicache {

/// When a page is written to the next slower tier (docs/prefix-cache.md, "Write policies").
/// - write_through: at the first insert.
/// - write_through_selective: at the second insert along it.
/// - write_back: when L1 evicts it. While L2 has no free page, all policies do so.
enum class write_policy : uint8_t { write_through, write_through_selective, write_back };

/// Order in which free pages are reused.
/// - newest_first: the page freed last comes first; never-used pages come last, ascending.
/// - ascending: freed pages are set aside until the free list runs short, then sorted into it.
/// Requests get runs of neighbouring pages at the cost of an occasional sort.
enum class page_order : uint8_t { newest_first, ascending };

/// When a prefetch ends (docs/policies.md compares them).
enum class prefetch_policy : uint8_t {
  /// When the request could run.
  best_effort,
  /// When everything has arrived.
  wait_complete,
  /// When everything has arrived, but no later than a limit that grows with the length.
  timeout,
};

/// Which pages a prefetch takes of those that L3 has (docs/policies.md, "Load or recompute").
enum class prefetch_rule : uint8_t {
  /// All.
  always,
  /// Those that are estimated to arrive sooner than they could be computed.
  faster,
};

/// Message format for routers. The formats differ in the names of L2 and of a salt.
enum class event_format : uint8_t {
  /// SGLang 0.5.23: "CPU_PINNED", and a `cache_salt`.
  sglang,
  /// vLLM 0.32: "CPU", and a salt among the `extra_keys` of a prompt's first block. Also what
  /// Dynamo and llm-d read.
  vllm,
};

/// Transport of pages. Peers with different settings use TCP.
enum class page_transport : uint8_t {
  /// UCX if there are RDMA devices.
  automatic,
  /// TCP only: with TLS, all bytes are encrypted.
  tcp,
  /// UCX, even without RDMA if UCX_NET_DEVICES names the devices.
  ucx,
};

/// How a segment uses its memory.
struct segment_policy {
  /// Eviction order.
  eviction_policy_ptr eviction = lru_policy();
  /// Shares of the segment: a page that would fill it beyond the high watermark first triggers
  /// eviction down to the low watermark, to leave room for the following pages. Both 1: pages are
  /// evicted one by one on demand.
  double high_watermark = 1;
  double low_watermark = 1;
  /// Share of the segment that hard pins may occupy.
  double pinned_share = 0.5;
  /// Share of the segment that held pages may occupy. They can be neither evicted nor moved, so new
  /// pages get only the rest.
  double held_share = 0.5;
  /// Share of the segment that one tenant's pages may occupy.
  double tenant_share = 1;
};

} // namespace hicache
