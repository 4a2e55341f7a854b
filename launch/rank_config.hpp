#pragma once

#include "base/clock.hpp"
#include "base/error.hpp"
#include "cache/geometry.hpp"
#include "cache/prefix_cache.hpp"
#include "gpu/device.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// What the storage backend and the prefetcher take from --hicache-storage-backend-extra-config.
struct storage_config {
  uint64_t prefetch_threshold = 256;
  /// Backend `file`: the folder, and the most it may hold on all ranks together; 0 is without
  /// bound.
  std::string path;
  uint64_t max_bytes = 0;
  /// Backend `cluster`: reads everything over UCX, also on the same machine.
  bool force_remote_reads = false;
  /// Worker threads of the backend.
  uint64_t threads = 2;
};

/// Reads a JSON text, or the JSON, TOML or YAML file behind an '@'.
/// @returns invalid_argument with a sentence that names the key or file and what was expected.
result<storage_config> parse_storage_config(const std::string& text);

/// Settings of one rank, as flags and configuration files give them. Equal on all ranks of an
/// instance.
struct rank_config {
  uint32_t page_size = 64;
  uint32_t device_pages = 4096;
  double hicache_ratio = 2.0;
  /// Gigabytes (1e9) of L2 per rank; 0 means that the ratio decides.
  double hicache_size = 0;
  std::string write_policy = "write_through";
  std::string io_backend = "direct";
  /// SMs that copies by kernel may occupy, and threads that copy on the host device; each direction
  /// for itself.
  uint32_t io_sms = 4;
  uint32_t io_threads = 1;
  std::string mem_layout = "page_first";
  std::string eviction_policy = "lru";
  /// Every request keeps its own pages and shares none.
  bool disable_radix_cache = false;
  /// Share of the larger of L1 and L2 that the pins of one tenant may keep.
  double pin_budget = 0.25;
  /// Empty: no L3.
  std::string storage_backend;
  std::string prefetch_policy = "wait_complete";
  std::string extra_config;
  /// HOST:PORT of the index; needed by the cluster backend.
  std::string index;
  uint64_t segment_bytes = 0;
  std::string device = "auto";
  std::string model = "tiny";
  /// Empty or 0 means that the model preset decides, here and below.
  std::string attention;
  uint32_t layers = 0;
  /// mha: of the whole model.
  uint32_t kv_heads = 0;
  /// mla and nsa: elements of the latent.
  uint32_t head_dim = 0;
  uint32_t v_head_dim = 0;
  /// nsa: bytes of a token's index key.
  uint32_t index_key_bytes = 0;
  std::string dtype;
  std::string name_space = "default";
  std::string listen_host = "127.0.0.1";
  std::string log_level = "info";
  /// File of the op log; each of several ranks appends its number. Empty: none.
  std::string record_ops;

  // -- derived by finish() ----------------------------------------------------

  storage_config storage;

  /// Fills in presets and checks every value.
  /// @param ranks Ranks of the instance.
  /// @returns invalid_argument with one sentence that names the flag and what was expected.
  result<void> finish(uint32_t ranks);

  /// @pre finish() succeeded.
  pool_shape shape(uint32_t ranks) const;

  /// Which part of each page a rank holds, as part of its objects' names: "heads 0+2", or "latent",
  /// which all ranks share.
  std::string shard(uint32_t rank, uint32_t ranks) const;

  /// Everything that must match for pages to be interchangeable, besides tokens and shard.
  std::string fingerprint(uint32_t ranks) const;

  uint32_t host_pages(uint32_t ranks) const;

  tree_options tree(uint32_t ranks) const;

  copy_options copies() const;

  /// Every setting with its value, in a fixed order: for the report and for comparing ranks.
  std::vector<std::pair<std::string, std::string>> fields() const;
};

/// Adds the flags that all ranks share, and --config FILE.
void add_rank_flags(CLI::App& app, rank_config& config);

/// Adds a flag that takes a size such as 64MiB.
void add_bytes_flag(CLI::App& app, const std::string& name, uint64_t& value,
                    const std::string& help);

/// Adds a flag that takes a time such as 250ms.
void add_duration_flag(CLI::App& app, const std::string& name, duration& value,
                       const std::string& help);

} // namespace hicache
