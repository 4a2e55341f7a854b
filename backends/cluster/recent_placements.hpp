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

/// Recent placements from the index. Answers are stored as they are and indexed on first recall, so
/// lookups without a following read stay cheap. Not thread-safe.
class recent_placements {
public:
  /// One answer of the index.
  struct answer {
    /// @param where A list of replicas for each key.
    /// @param until Not recalled from then on.
    answer(std::span<const page_key> keys, const placements& where, time_point until);

    time_point until;
    std::vector<page_key> keys;
    /// Replicas of all keys, one after the other, and the end of each key's part.
    std::vector<replica> replicas;
    std::vector<uint32_t> ends;
  };

  /// @param most_pages Maximum number of pages remembered; the oldest answers are dropped first.
  explicit recent_placements(size_t most_pages) : most_pages_(most_pages) {}

  void enter(answer latest);

  /// @returns per key the replicas of the latest answer for it; none if no answer has any
  placements recall(std::span<const page_key> keys, time_point now);

private:
  /// The number of an answer, and a position in it.
  using place = std::pair<uint64_t, size_t>;

  void drop_oldest();

  size_t most_pages_;
  size_t pages_ = 0;
  /// Oldest first; numbered consecutively from `oldest_`.
  std::deque<answer> answers_;
  uint64_t oldest_ = 0;
  /// Index of the answers before number `looked_into_`.
  std::unordered_map<page_key, place> places_;
  uint64_t looked_into_ = 0;
};

} // namespace hicache
