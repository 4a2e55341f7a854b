#pragma once

#include "hicache/error.hpp"
#include "messages/message_lists.hpp"

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

#define HICACHE_DECLARE_CODEC(T, Schema)                                                           \
  template <>                                                                                      \
  struct codec<T> {                                                                                \
    static frame encode(const T& x);                                                               \
    static result<T> decode(std::span<const uint64_t> words);                                      \
  };

HICACHE_INDEX_MESSAGES(HICACHE_DECLARE_CODEC)
HICACHE_NODE_MESSAGES(HICACHE_DECLARE_CODEC)
HICACHE_STORE_MESSAGES(HICACHE_DECLARE_CODEC)

#undef HICACHE_DECLARE_CODEC

/// True for types that may cross processes.
template <class T>
concept wire_type = requires(const T& x, std::span<const uint64_t> words) {
  { codec<T>::encode(x) } -> std::same_as<frame>;
  { codec<T>::decode(words) } -> std::same_as<result<T>>;
};

} // namespace hicache::wire
