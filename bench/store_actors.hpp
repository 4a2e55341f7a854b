#pragma once

#include "backends/cluster/index_link.hpp"
#include "bench/store_parts.hpp"
#include "hicache/system_config.hpp"
#include "rpc/network.hpp"

#include <caf/actor_system.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace hicache::bench {

using steady = std::chrono::steady_clock;

inline double seconds_since(steady::time_point begin) {
  return std::chrono::duration<double>(steady::now() - begin).count();
}

inline steady::duration from_seconds(double seconds) {
  return std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(seconds));
}

/// An actor system connected to a shard of an index.
class index_client {
public:
  static result<std::unique_ptr<index_client>> connect(const std::string& at);

  ~index_client();

  index_client(const index_client&) = delete;

  index_client& operator=(const index_client&) = delete;

  caf::actor_system& system() noexcept { return system_; }

  /// Null if not connected.
  index_actor shard() const;

private:
  index_client();

  system_config config_;
  caf::actor_system system_;
  rpc_network network_;
  std::unique_ptr<index_link> link_;
};

/// Keys `first` to `first + count - 1` of `hicache-bench store`, in batches of `batch`.
std::vector<std::vector<page_key>> key_batches(uint64_t first, uint64_t count, uint64_t batch);

/// A member without memory.
member_info describe(uint64_t id, uint64_t pages);

/// Announcements of `count` keys from `first` on.
std::vector<published_pages> announcements(uint64_t id, uint64_t first, uint64_t count,
                                           uint64_t batch);

/// Lookup latencies and hits.
struct lookup_figures {
  void count(steady::time_point begin, const placements& answer) {
    latency_us.push_back(1e6 * seconds_since(begin));
    for (const auto& copies : answer.replicas)
      found += copies.empty() ? 0 : 1;
  }

  std::vector<double> latency_us;
  uint64_t found = 0;
  std::string failure;
};

nlohmann::json to_json(lookup_figures& figures, uint64_t batch, double seconds);

// -- baseline: bare Cap'n Proto RPC ---------------------------------------------

/// As measure_lookups, against `serve_fixed_answers`: no actors, no index.
result<nlohmann::json> measure_bare_lookups(const ask_options& options);

/// As announce_keys.
result<nlohmann::json> announce_bare_keys(const announce_options& options);

} // namespace hicache::bench
