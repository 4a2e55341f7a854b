#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Identifiers, and the shared immutable arrays carried by messages.
namespace hicache {

/// A token of the model's vocabulary.
using token_id = uint32_t;

/// Number of a page in one pool. Page 0 is the padding page (it holds slot 0, to which engines let
/// unused lanes write), so it is never allocated or cached.
using page_index = uint32_t;

/// A node of the radix tree. Never reused within a tree; 0 is no node.
using node_id = uint64_t;

/// A request, chosen by the engine and equal on all ranks. Unique among open requests; numbers from
/// 2^63 on are reserved for the cache.
using request_id = uint64_t;

/// A session, chosen by the engine and equal on all ranks; 0 is none.
using session_id = uint64_t;

/// A prefetch, numbered in issue order from 1; equal on all ranks.
using fetch_id = uint64_t;

/// A copy between L1 and L2 or a write to L3. Each kind is numbered in issue order from 1; equal on
/// all ranks.
using operation_id = uint64_t;

/// The name of a page: SHA-256 over the page's tokens and, by chaining, all tokens before it.
struct page_key {
  std::array<uint8_t, 32> bytes{};

  friend auto operator<=>(const page_key&, const page_key&) = default;
};

/// Lower-case hexadecimal, 64 digits.
/// @relates page_key
std::string to_string(const page_key& key);

/// The key of 64 hexadecimal digits, as to_string writes them.
/// @relates page_key
std::optional<page_key> parse_page_key(std::string_view text) noexcept;

/// The first word of a key, the same in every process. Keys are uniformly distributed, but a client
/// that chooses tokens can produce many keys with the same word.
/// @relates page_key
inline uint64_t first_word(const page_key& key) noexcept {
  auto word = uint64_t{};
  std::memcpy(&word, key.bytes.data(), sizeof word);
  return word;
}

/// A hash for hash tables, salted per process so that clients cannot choose colliding keys.
/// @relates page_key
uint64_t salted_hash(const page_key& key) noexcept;

using token_buffer = std::shared_ptr<const std::vector<token_id>>;

using page_list = std::shared_ptr<const std::vector<page_index>>;

using key_list = std::shared_ptr<const std::vector<page_key>>;

/// Separates requests of one model with equal tokens: adapter and tenant. Both empty: the base
/// model, shared by all.
struct cache_namespace {
  std::string extra_key;
  std::string salt;

  friend auto operator<=>(const cache_namespace&, const cache_namespace&) = default;
};

/// Independent sequences of reductions, each with its own communicator, so none waits for another.
enum class reduction_channel : uint8_t {
  /// One reduction per turn of the engine's scheduler loop.
  step = 0,
  /// Hit lengths of prefetches, between steps.
  prefetch = 1,
  /// The engine's own reductions: configurations at the start, reports at the end.
  engine = 2,
  /// Changes of the storage backend. Every rank enters with a vector of fixed size, and waits
  /// without a time limit until rank 0 has a request.
  admin = 3,
};

/// Number of enumerators of `reduction_channel`.
inline constexpr size_t reduction_channel_count = 4;

} // namespace hicache

template <>
struct std::hash<hicache::page_key> {
  size_t operator()(const hicache::page_key& key) const noexcept {
    return hicache::salted_hash(key);
  }
};
