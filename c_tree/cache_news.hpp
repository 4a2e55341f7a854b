#pragma once

#include "base/immovable.hpp"
#include "base/polled_queue.hpp"
#include "c_abi/own_process.hpp"
#include "cache/prefix/cache_event.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache_tree.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <variant>
#include <vector>

namespace hicache {

/// The next step has something to report.
struct step_news {};

/// Reports of a cache to the engine: step_news, failures, and events for routers.
using cache_news = std::variant<step_news, error, cache_event>;

} // namespace hicache

/// News with their representation in C.
struct hc_news_list : hicache::own_process, hicache::immovable {
  hc_news_list(std::deque<hicache::cache_news> news, uint64_t lost);

  const std::vector<hc_news>& items() const noexcept { return items_; }

private:
  const std::deque<hicache::cache_news> news_;
  std::vector<hc_news> items_;
};

namespace hicache {

/// Queue of news. Any thread.
class news_queue : public polled_queue {
public:
  /// @param most Capacity; beyond it the oldest news are dropped.
  /// @pre most > 0
  explicit news_queue(size_t most);

  /// Adds news; at most one step_news is queued. Dropped after close().
  void add(cache_news news);

  /// Takes all news, waiting for the first.
  /// @returns deadline_exceeded; stopping
  result<std::unique_ptr<hc_news_list>> take(time_point deadline);

private:
  const size_t most_;
  std::deque<cache_news> news_;
  bool is_step_waiting_ = false;
  uint64_t lost_ = 0;
};

} // namespace hicache
