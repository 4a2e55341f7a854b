#pragma once

#include "c_abi/own_process.hpp"
#include "c_tree/cache_answers.hpp"
#include "c_tree/cache_config.hpp"
#include "c_tree/cache_log.hpp"
#include "c_tree/cache_news.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/runtime.hpp"
#include "hicache/system_config.hpp"
#include "hicache_tree.h"

#include <caf/actor_system.hpp>

#include <cstdint>
#include <memory>
#include <vector>

/// A rank of the C ABI: a rank_runtime, and an engine actor that queues the runtime's reports for
/// the caller. Throws only if memory or threads run out.
struct hc_cache : hicache::own_process {
  template <class T>
  using result = hicache::result<T>;

  static result<std::unique_ptr<hc_cache>> open(hicache::cache_setup settings,
                                                const hc_cache_options& options);

  /// As hc_cache_close says.
  ~hc_cache();

  hicache::time_point now() const noexcept { return clock_.now(); }

  hc_cache_info info() const;

  /// @returns invalid_argument
  result<hc_layer> layer(uint32_t part, uint32_t layer) const;

  /// Sends operations to the tree.
  /// @param kinds The operations' kinds, for their answers.
  std::unique_ptr<hc_answers> apply(hicache::tree_operations ops, std::vector<uint32_t> kinds);

  result<hc_facts> step(std::chrono::milliseconds wait);

  result<void> wait_for_layer(const hicache::layer_progress& progress, void* stream,
                              uint32_t layer) {
    return runtime_->wait_for_layer(progress, stream, layer);
  }

  hicache::news_queue& news() noexcept { return news_; }

  const hicache::news_queue& news() const noexcept { return news_; }

  hc_cache_counters counters();

private:
  hc_cache(hicache::cache_setup settings, const hc_cache_options& options);

  /// Joins the other ranks and starts the runtime.
  result<void> start(const hc_cache_options& options);

  result<std::unique_ptr<hicache::rank_reducer>> meet_others() const;

  const hicache::cache_setup settings_;
  hicache::monotonic_clock clock_;
  hicache::log_listener log_;
  hicache::news_queue news_;
  hicache::system_config config_;
  caf::actor_system system_;
  hicache::engine_actor engine_;
  std::unique_ptr<hicache::rank_runtime> runtime_;
  /// Storage of the last step's facts.
  std::vector<hc_ready> ready_;
  std::vector<uint64_t> failed_;
  /// Shared, because answers may be freed after the cache.
  const std::shared_ptr<hicache::open_answers> answers_ = std::make_shared<hicache::open_answers>();
};
