#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

/// What the cache can serve, told as it changes: for routers.
namespace hicache {

/// Where pages are.
enum class cache_medium : uint8_t { device, host };

/// The id by which routers know a page: the first eight bytes of its name for routers, big endian,
/// as a signed number (SGLang's scheme). The names contain the namespace (event_seed), so ids do.
int64_t event_id(const page_key& key) noexcept;

/// Pages can be served from `medium` from now on. Emitted when the bytes are there, not before.
struct pages_stored {
  cache_medium medium = cache_medium::device;
  cache_namespace ns;
  /// The page before the first one; nothing if that is the start of a prompt.
  std::optional<page_key> parent;
  /// Consecutive pages of one path, by their names for routers, and their tokens: keys.size() *
  /// page_size, one more with bigrams.
  std::vector<page_key> keys;
  std::vector<token_id> tokens;

  friend bool operator==(const pages_stored&, const pages_stored&) = default;
};

/// Pages can no longer be served from `medium`.
struct pages_removed {
  cache_medium medium = cache_medium::device;
  std::vector<page_key> keys;

  friend bool operator==(const pages_removed&, const pages_removed&) = default;
};

/// Nothing is cached any more, on no medium. The first event of a cache.
struct cache_cleared {
  friend bool operator==(const cache_cleared&, const cache_cleared&) = default;
};

/// A change of what the cache can serve.
using cache_event = std::variant<pages_stored, pages_removed, cache_cleared>;

/// What became true in the cache since the last such message, in order. Shared by reference inside
/// a process.
struct cache_events {
  std::vector<cache_event> list;
  /// Counts these messages, from 0.
  uint64_t number = 0;
};

using cache_events_ptr = std::shared_ptr<const cache_events>;

} // namespace hicache
