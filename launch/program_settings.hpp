#pragma once

#include "hicache/config.hpp"
#include "runtime/node_host.hpp"
#include "runtime/setting_flags.hpp"

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

/// The settings of hicache-index and hicache-node, except the flags of add_tls_flags.
namespace hicache {

struct index_flags {
  std::string listen = "127.0.0.1:7766";
  std::string advertise;
  uint32_t shards = 1;
  uint32_t first_shard = 0;
  std::string join;
  duration member_ttl = std::chrono::seconds{10};
  tls_files tls;
  bool insecure = false;
  metrics_options metrics;
  hicache::log_level log_level = log_level::info;
};

std::span<const setting<index_flags>> index_settings();

struct node_flags {
  /// Without what hicache-node finds out by itself: `opened`, `group`, `listen` and the clock.
  node_host_options host;
  std::string group;
  std::string listen;
  bool insecure = false;
  metrics_options metrics;
  hicache::log_level log_level = log_level::info;
};

std::span<const setting<node_flags>> node_settings();

} // namespace hicache
