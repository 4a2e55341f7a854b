#pragma once

#include "hicache/clock.hpp"
#include "messages/index_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache {

/// Where the index said a moment ago that pages are. Answers are kept as they come and looked into
/// when somebody recalls them, so that who only asks pays next to nothing. Not thread-safe.
class recent_placements {
public:
  /// One answer of the index.
  struct answer {
    /// @param where A list of replicas for each key.
    /// @param until Nobody recalls it from then on.
    answer(std::span<const page_key> keys, const placements& where, time_point until);

    time_point until;
    std::vector<page_key> keys;
    /// Of all keys, one after the other, and where those of each key end.
    std::vector<replica> replicas;
    std::vector<uint32_t> ends;
  };

  /// @param most_pages How many pages are remembered at most: those of the latest answers.
  explicit recent_placements(size_t most_pages) : most_pages_(most_pages) {}

  void enter(answer latest);

  /// @returns for each key what the latest answer says that has it; no replicas if none has
  placements recall(std::span<const page_key> keys, time_point now);

private:
  /// The number of an answer, and a position in it.
  using place = std::pair<uint64_t, size_t>;

  void drop_oldest();

  size_t most_pages_;
  size_t pages_ = 0;
  /// Oldest first; numbered one after the other, the first of them `oldest_`.
  std::deque<answer> answers_;
  uint64_t oldest_ = 0;
  /// Of the answers before number `looked_into_`.
  std::unordered_map<page_key, place> places_;
  uint64_t looked_into_ = 0;
};

} // namespace hicache
