#pragma once

#include "hicache/eviction_policy.hpp"

#include <cstdint>

/// The choices that a configuration offers by name, as types.
namespace hicache {

/// When a page goes to the next slower tier (docs/prefix-cache.md, "Write policies").
/// - write_through: with the first insert.
/// - write_through_selective: with the second insert along it.
/// - write_back: when the device needs its room.
/// Where L2 has no free page, all wait until the device needs the room.
enum class write_policy : uint8_t { write_through, write_through_selective, write_back };

/// In which order free pages are handed out again.
/// - newest_first: the page given back last comes first; never-used pages come last, ascending.
/// - ascending: pages given back wait aside until the free list runs short. Then they are sorted
///   into it, so that requests get runs of neighbouring pages, for a sort every now and then.
enum class page_order : uint8_t { newest_first, ascending };

/// When a prefetch ends (docs/policies.md compares them).
enum class prefetch_policy : uint8_t {
  /// When the request could run.
  best_effort,
  /// When everything has arrived.
  wait_complete,
  /// When everything has arrived, but after a time that grows with the length at the latest.
  timeout,
};

/// Whose publisher's messages routers read. They differ in what L2 and a salt are called.
enum class event_format : uint8_t {
  /// SGLang 0.5.23: "CPU_PINNED", and a `cache_salt`.
  sglang,
  /// vLLM 0.32: "CPU", and a salt among the `extra_keys` of a prompt's first block. Also what
  /// Dynamo and llm-d read.
  vllm,
};

/// What pages travel by. Peers of different minds use TCP.
enum class page_transport : uint8_t {
  /// UCX where there are RDMA devices.
  automatic,
  /// TCP only: with TLS, all bytes are encrypted.
  tcp,
  /// UCX, also without RDMA if UCX_NET_DEVICES names the devices.
  ucx,
};

/// How a segment uses its memory.
struct segment_policy {
  /// Who goes first when room is needed.
  eviction_policy_ptr eviction = lru_policy();
  /// A page that would fill the segment beyond the first share first makes the second one: so that
  /// there is room for the next ones. Both 1: pages are evicted one by one, when they have to.
  double high_watermark = 1;
  double low_watermark = 1;
  /// Share of the segment that hard pins may keep.
  double pinned_share = 0.5;
  /// Share of the segment that held pages may take. They can neither go nor move, so the rest is
  /// what new pages have.
  double held_share = 0.5;
  /// Share of the segment that the pages of one tenant may have.
  double tenant_share = 1;
};

} // namespace hicache
