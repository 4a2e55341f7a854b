#pragma once

#include "hicache/clock.hpp"
#include "hicache/device.hpp"
#include "hicache/error.hpp"
#include "hicache/eviction_policy.hpp"
#include "hicache/geometry.hpp"
#include "hicache/policies.hpp"
#include "hicache/tls_files.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What a rank of hicache can be told. docs/configuration.md has the same settings as flags and as
/// keys of configuration files.
namespace hicache {

/// Type of the elements of KV.
enum class element_type : uint8_t { fp8, fp16, bf16, fp32 };

/// @relates element_type
const char* to_string(element_type type) noexcept;

/// What a process writes to its log: this and what is worse.
enum class log_level : uint8_t { trace, debug, info, warn, error, critical };

/// @relates log_level
const char* to_string(log_level level) noexcept;

/// What the storage backend and the prefetcher take from --hicache-storage-backend-extra-config.
struct storage_config {
  uint64_t prefetch_threshold = 256;
  /// Prefetch policy `timeout`: base + per_ki_token * tokens / 1024, at most max.
  duration prefetch_timeout_base = std::chrono::seconds{1};
  duration prefetch_timeout_per_ki_token = std::chrono::milliseconds{250};
  duration prefetch_timeout_max = std::chrono::seconds{30};
  /// Share of L2 that is set aside for pages on their way from L3.
  double prefetch_share = 0.25;
  /// Backend `file`: the folder, and the most it may hold on all ranks together; 0 is without
  /// bound.
  std::string path;
  uint64_t max_bytes = 0;
  /// Backend `cluster`: reads everything over the network, also on the same machine.
  bool force_remote_reads = false;
  /// mha: a multiple of the ranks of all instances that share pages; the KV heads go into so many
  /// objects, or as many as there are heads if it is a multiple of these. 0: each KV head is an
  /// object, which suits every number of ranks.
  uint64_t tp_lcm_size = 0;
  /// Worker threads of the backend.
  uint64_t threads = 2;
  /// Backend `cluster`: how this rank's segment is used.
  segment_policy segment;
  /// Backend `cluster`: copies of each page, on different hosts.
  uint64_t replicas = 1;
  /// Backend `cluster`: what counts as one host; the machine's name if empty.
  std::string host;
  /// Backend `cluster`: pages of L2 are offered where they lie, and not copied to the segment.
  bool zero_copy = false;
};

/// Where Prometheus finds the metrics of a process.
struct metrics_options {
  std::string host = "127.0.0.1";
  /// 0: nowhere.
  uint16_t port = 0;
};

/// Settings of one rank, as flags and configuration files give them. Equal on all ranks of an
/// instance.
struct rank_config {
  uint32_t page_size = 64;
  uint32_t l1_pages = 4096;
  double hicache_ratio = 2.0;
  /// Gigabytes (1e9) of L2 per rank; 0 means that the ratio decides.
  double hicache_size = 0;
  hicache::write_policy write_policy = write_policy::write_through;
  hicache::io_backend io_backend = io_backend::direct;
  /// SMs that copies by kernel may occupy, and threads that copy on the host device; each direction
  /// for itself.
  uint32_t io_sms = 4;
  uint32_t io_threads = 1;
  /// Layout of L2.
  host_layout mem_layout = host_layout::page_first;
  /// A name that make_eviction_policy() knows; rank_extensions::eviction overrides it.
  std::string eviction_policy = "lru";
  hicache::page_order page_order = page_order::newest_first;
  /// Tokens of a host part that is computed rather than loaded, if it has fewer.
  uint32_t load_back_threshold = 10;
  /// The unit is a pair of neighbouring tokens, for speculative decoding with EAGLE.
  bool bigram = false;
  /// Every request keeps its own pages and shares none.
  bool disable_radix_cache = false;
  /// Share of the larger of L1 and L2 that the pins of one tenant may keep.
  double pin_budget = 0.25;
  /// A use of all that is pinned begins the pin's time anew.
  bool pin_refresh = false;
  /// Shares of L1: as soon as fewer pages are free than the first, steps evict until the second is.
  double evict_below = 0.01;
  double evict_until = 0.02;
  /// Empty: no L3.
  std::string storage_backend;
  hicache::prefetch_policy prefetch_policy = prefetch_policy::wait_complete;
  /// JSON, or @FILE; after finish() the JSON of either.
  std::string extra_config;
  /// HOST:PORT of the index; needed by the cluster backend.
  std::string index;
  /// Where the node listens, a path or HOST:PORT; needed by the node backend. May differ between
  /// ranks.
  std::string node;
  uint64_t segment_bytes = 0;
  device_choice device;
  std::string model = "tiny";
  /// Absent or 0 means that the model preset decides, here and below.
  std::optional<attention_kind> attention;
  uint32_t layers = 0;
  /// mha: of the whole model.
  uint32_t kv_heads = 0;
  /// mla and nsa: elements of the latent.
  uint32_t head_dim = 0;
  uint32_t v_head_dim = 0;
  /// nsa: bytes of a token's index key.
  uint32_t index_key_bytes = 0;
  std::optional<element_type> dtype;
  std::string name_space = "default";
  /// Which weights made the KV: name and revision, or a digest of them (launch/model_folder.hpp).
  /// Needed by an L3 that instances share, since equal shapes say nothing about weights. It and
  /// what follows, down to `numerics`, are part of the names of pages and of nothing else.
  std::string model_id;
  /// How the elements of the KV are quantised, and with which scales; empty if they are not.
  std::string kv_quantisation;
  std::string kv_scales;
  /// A JSON object of RoPE settings that are not the model's own; finish() makes its text
  /// canonical.
  std::string rope;
  /// Of the model's layers, the first that this instance keeps: the stage of a pipeline.
  uint32_t first_layer = 0;
  /// Whatever else makes an engine's bits differ: kernels, precision of the attention.
  std::string numerics;
  std::string listen_host = "127.0.0.1";
  /// What pages travel by between machines (transport/page_channel.hpp).
  hicache::page_transport page_transport = page_transport::automatic;
  /// Of all connections between processes of the cluster. Paths may differ between ranks.
  tls_files tls;
  /// Lets listen_host and kv_events be ones that other machines reach, without TLS.
  bool insecure = false;
  /// Where rank 0 publishes what L1 and L2 can serve (transport/event_socket.hpp), and under which
  /// topic. Empty: nowhere.
  std::string kv_events;
  std::string kv_events_topic;
  /// Where it is asked for those that a subscriber missed. Empty: nowhere.
  std::string kv_events_replay;
  event_format kv_events_format = event_format::sglang;
  duration step_timeout = std::chrono::seconds{30};
  /// What one call of L3 may take.
  duration storage_timeout = std::chrono::seconds{10};
  /// How long a rank that ends waits for calls of L3 that have not returned.
  duration shutdown_grace = std::chrono::seconds{3};
  hicache::log_level log_level = log_level::info;
  /// File of the op log; each of several ranks appends its number. Empty: none.
  std::string record_ops;
  /// HOST:PORT at which rank 0 answers operators (runtime/admin_server.hpp). Empty: nowhere.
  std::string admin_listen;
  /// File with the token that they need. It may differ between ranks, since rank 0 alone reads it.
  std::string admin_token_file;
  /// Where Prometheus finds rank 0; each further rank listens on the port of the one before plus 1.
  metrics_options metrics;

  // -- derived by finish() ----------------------------------------------------

  storage_config storage;

  /// Fills in presets and checks every value.
  /// @param ranks Ranks of the instance.
  /// @returns invalid_argument with one sentence that names the flag and what was expected.
  result<void> finish(uint32_t ranks);

  /// How the model's heads lie on the ranks.
  /// @pre finish() succeeded, here and below.
  head_split split(uint32_t ranks) const;

  pool_shape shape(uint32_t ranks) const;

  /// Heads in one object in L3: as many as storage.tp_lcm_size says, or one.
  uint32_t heads_per_object() const;

  /// What a rank holds of each page.
  std::vector<head_group> head_groups(uint32_t rank, uint32_t ranks) const;

  /// Everything that must match for objects to be interchangeable, besides tokens and head group,
  /// as a JSON object: two of them are equal only if all settings in them are. Does not depend on
  /// the number of ranks.
  std::string fingerprint() const;

  uint32_t l2_pages(uint32_t ranks) const;
};

} // namespace hicache
