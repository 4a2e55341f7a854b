#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

namespace hicache {

/// Number of an instance behind the router, below router_instances.
using instance_slot = uint32_t;

/// One bit for each in the sets of the index.
inline constexpr auto router_instances = instance_slot{64};

/// How an instance cuts prompts into pages, as its events show.
struct page_shape {
  /// 0: no event has shown it.
  uint32_t page_size = 0;
  /// 1 with bigrams, else 0.
  uint32_t overlap = 0;

  friend auto operator<=>(const page_shape&, const page_shape&) = default;
};

/// A prompt, and the event ids of its whole pages for each shape of the instances.
struct routed_prompt {
  std::vector<token_id> tokens;
  std::map<page_shape, std::vector<int64_t>> ids;
};

/// Names the pages of a prompt as events do.
/// @param salt Of the prompt's namespace.
routed_prompt name_prompt(std::vector<token_id> tokens, std::string_view salt,
                          std::span<const page_shape> shapes);

/// Where the beginning of a prompt is cached, in tokens: first those in L1 or L2 of an instance,
/// then those that follow in L3.
struct cached_prefix {
  uint64_t l1 = 0;
  uint64_t l2 = 0;
  uint64_t l3 = 0;

  uint64_t total() const noexcept { return l1 + l2 + l3; }

  friend bool operator==(const cached_prefix&, const cached_prefix&) = default;
};

/// Which pages the instances have, by their events. Pure; one thread at a time.
class prefix_index {
public:
  /// @param shares_l3 The instances share an L3 that keeps what they store. Events do not tell what
  /// L3 has, so a page counts as there once an instance has had it.
  /// @param pages_max Pages that are remembered. When they are that many, those that no instance
  /// has are forgotten; if all are held, new pages are left out.
  explicit prefix_index(bool shares_l3, size_t pages_max = size_t{1} << 24)
    : shares_l3_(shares_l3), pages_max_(pages_max) {}

  /// Applies a message of an instance's publisher (cache/prefix/event_message.hpp), in the format
  /// of SGLang or of vLLM. Events of other kinds are skipped. Any bytes.
  /// @returns malformed_message with a sentence; events before the malformed one are applied
  result<void> apply(instance_slot slot, std::string_view message);

  /// The instance has no pages any more, or nobody knows which.
  void forget(instance_slot slot);

  /// The different shapes of all instances whose events have shown one.
  std::vector<page_shape> shapes() const;

  /// What an instance has of a prompt.
  cached_prefix find(instance_slot slot, const routed_prompt& prompt) const;

  /// Pages that an instance has, in L1 or L2.
  uint64_t pages(instance_slot slot) const { return counts_.at(slot); }

  /// Pages that are remembered.
  size_t size() const noexcept { return held_.size(); }

private:
  /// Instances that have a page, one bit each.
  struct holders {
    uint64_t l1 = 0;
    uint64_t l2 = 0;
  };

  using page_map = absl::flat_hash_map<int64_t, holders>;

  bool make_room();
  void store(instance_slot slot, int64_t id, uint64_t holders::*medium);
  void remove(instance_slot slot, int64_t id, uint64_t holders::*medium);
  void drop(page_map::iterator at);

  bool shares_l3_;
  size_t pages_max_;
  page_map held_;
  std::array<uint64_t, router_instances> counts_{};
  std::array<page_shape, router_instances> shapes_{};
  /// Pages that no instance has; remembered for L3.
  size_t unheld_ = 0;
};

} // namespace hicache
