#pragma once

#include "messages/ids.hpp"

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

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

/// Collects events and coalesces neighbours: stores that continue each other on one medium become
/// one, so do removals from one medium. The order of what remains is the order of the facts.
class event_queue {
public:
  /// @param overlap Tokens by which neighbouring pages overlap: 1 with bigrams, else 0.
  explicit event_queue(uint32_t overlap = 0) : overlap_(overlap) {}

  void add(pages_stored event);
  void add(pages_removed event);
  void add(cache_cleared event);

  /// Takes what was collected.
  std::vector<cache_event> take();

  bool empty() const noexcept { return list_.empty(); }

private:
  uint32_t overlap_;
  std::vector<cache_event> list_;
};

} // namespace hicache
