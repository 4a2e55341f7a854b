#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

/// Cache events: changes of what the cache can serve, for routers.
namespace hicache {

/// The tier that holds pages: L1 (device) or L2 (host).
enum class cache_medium : uint8_t { l1, l2 };

/// The id of a page for routers: the first eight bytes of its event key, big endian, as a signed
/// number (SGLang's scheme). Event keys include the namespace (event_seed).
int64_t event_id(const page_key& key) noexcept;

/// Pages can be served from `medium` from now on. Emitted only once their bytes are there.
struct pages_stored {
  cache_medium medium = cache_medium::l1;
  cache_namespace ns;
  /// The page before the first of `keys`; empty if that is the first page of a prompt.
  std::optional<page_key> parent;
  /// Event keys of consecutive pages of one path, and their keys.size() * page_size tokens, one
  /// more with bigrams.
  std::vector<page_key> keys;
  std::vector<token_id> tokens;

  friend bool operator==(const pages_stored&, const pages_stored&) = default;
};

/// Pages can no longer be served from `medium`.
struct pages_removed {
  cache_medium medium = cache_medium::l1;
  std::vector<page_key> keys;

  friend bool operator==(const pages_removed&, const pages_removed&) = default;
};

/// The cache is empty in every tier. The first event of a cache.
struct cache_cleared {
  friend bool operator==(const cache_cleared&, const cache_cleared&) = default;
};

/// A change of what the cache can serve.
using cache_event = std::variant<pages_stored, pages_removed, cache_cleared>;

/// The events since the previous message, in order. Shared by reference within a process.
struct cache_events {
  /// Makes the list on the caller's thread, which names the pages: that takes time that grows with
  /// their tokens. Any thread.
  std::function<std::vector<cache_event>()> list;
  /// Sequence number of the message, from 0.
  uint64_t number = 0;
};

using cache_events_ptr = std::shared_ptr<const cache_events>;

} // namespace hicache
