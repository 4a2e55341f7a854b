#pragma once

#include "hicache/clock.hpp"
#include "hicache/ids.hpp"
#include "hicache/storage_policies.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// Pages that lost copies, and when to re-replicate them: repair_policy::delay after the
/// loss, and
/// again after pauses that double from limits::repair_retry_first to limits::repair_retry_last
/// while too few members take them. Pure: time is an argument, and equal calls give equal answers.
class repair_queue {
public:
  explicit repair_queue(const repair_policy& policy = {}) : delay_(policy.delay) {}

  /// The page lost a copy.
  void note(const page_key& key, time_point now);

  /// Up to `most` due pages, longest waiting first. They are in progress until `settle`.
  std::vector<page_key> take(time_point now, size_t most);

  /// Ends the taken pages, except those that still lack copies, which are retried.
  /// @param lacking A subset of `taken`.
  void settle(std::span<const page_key> taken, std::span<const page_key> lacking, time_point now);

  /// Pages waiting or in progress.
  size_t size() const noexcept { return pages_.size(); }

private:
  struct entry {
    uint32_t tries = 0;
    bool is_under_way = false;
    /// Another copy was lost meanwhile.
    bool is_lost_again = false;
  };

  using pages = std::map<page_key, entry>;

  void wait(pages::iterator at, time_point due);

  duration delay_;
  pages pages_;
  std::set<std::pair<time_point, page_key>> waiting_;
};

} // namespace hicache
