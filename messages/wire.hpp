#pragma once

#include "hicache/error.hpp"
#include "messages/index_protocol.hpp"
#include "messages/node_protocol.hpp"
#include "messages/store_protocol.hpp"

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

namespace hicache::wire {

/// One encoded message. Cap'n Proto works on aligned 64-bit words.
using frame = std::vector<uint64_t>;

/// Encoding of a message of index_protocol.hpp, node_protocol.hpp or store_protocol.hpp;
/// specialised for those only. `decode` takes untrusted bytes and returns malformed_message unless
/// they hold a valid T within the bounds of base/limits.hpp.
template <class T>
struct codec;

#define HICACHE_DECLARE_CODEC(T)                                                                   \
  template <>                                                                                      \
  struct codec<T> {                                                                                \
    static frame encode(const T& x);                                                               \
    static result<T> decode(std::span<const uint64_t> words);                                      \
  };

HICACHE_DECLARE_CODEC(member_info)
HICACHE_DECLARE_CODEC(shard_map)
HICACHE_DECLARE_CODEC(membership)
HICACHE_DECLARE_CODEC(heartbeat)
HICACHE_DECLARE_CODEC(published_pages)
HICACHE_DECLARE_CODEC(withdrawn_pages)
HICACHE_DECLARE_CODEC(key_batch)
HICACHE_DECLARE_CODEC(awaited_pages)
HICACHE_DECLARE_CODEC(placements)
HICACHE_DECLARE_CODEC(member_query)
HICACHE_DECLARE_CODEC(member_list)
HICACHE_DECLARE_CODEC(status_query)
HICACHE_DECLARE_CODEC(index_status)
HICACHE_DECLARE_CODEC(page_totals)
HICACHE_DECLARE_CODEC(page_pins)
HICACHE_DECLARE_CODEC(namespace_pages)
HICACHE_DECLARE_CODEC(page_copies)
HICACHE_DECLARE_CODEC(page_recall)
HICACHE_DECLARE_CODEC(drain_request)
HICACHE_DECLARE_CODEC(drain_report)
HICACHE_DECLARE_CODEC(drain_progress)
HICACHE_DECLARE_CODEC(client_info)
HICACHE_DECLARE_CODEC(node_info)
HICACHE_DECLARE_CODEC(wanted_pages)
HICACHE_DECLARE_CODEC(reserved_pages)
HICACHE_DECLARE_CODEC(complete_pages)
HICACHE_DECLARE_CODEC(client_ticket)
HICACHE_DECLARE_CODEC(page_lookup)
HICACHE_DECLARE_CODEC(leased_pages)
HICACHE_DECLARE_CODEC(page_prefetch)
HICACHE_DECLARE_CODEC(node_status)
HICACHE_DECLARE_CODEC(store_hello)
HICACHE_DECLARE_CODEC(store_welcome)
HICACHE_DECLARE_CODEC(store_request)
HICACHE_DECLARE_CODEC(store_answer)

#undef HICACHE_DECLARE_CODEC

/// True for types that may cross processes.
template <class T>
concept wire_type = requires(const T& x, std::span<const uint64_t> words) {
  { codec<T>::encode(x) } -> std::same_as<frame>;
  { codec<T>::decode(words) } -> std::same_as<result<T>>;
};

} // namespace hicache::wire
