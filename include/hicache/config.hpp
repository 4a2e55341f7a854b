#pragma once

#include "hicache/clock.hpp"
#include "hicache/device.hpp"
#include "hicache/error.hpp"
#include "hicache/eviction_policy.hpp"
#include "hicache/geometry.hpp"
#include "hicache/policies.hpp"
#include "hicache/storage_policies.hpp"
#include "hicache/tls_files.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Settings of a rank. docs/configuration.md lists them as flags and configuration keys.
namespace hicache {

/// Element type of the KV.
enum class element_type : uint8_t { fp8, fp16, bf16, fp32 };

/// @relates element_type
const char* to_string(element_type type) noexcept;

/// Least severity that a process logs.
enum class log_level : uint8_t { trace, debug, info, warn, error, critical };

/// @relates log_level
const char* to_string(log_level level) noexcept;

/// What a store does among the tiers of backend `tiered` (docs/backends.md, "tiered").
struct tier_config {
  /// Name of the backend.
  std::string backend;
  /// Which objects are written to it: "all", "evict", "hits:N" or "never".
  std::string write = "all";
  /// Objects read from a lower tier are written to it, from their second use on.
  bool promote = true;
  /// Most bytes written to it per second and per day; 0: unlimited.
  uint64_t write_bytes_per_second = 0;
  uint64_t write_bytes_per_day = 0;
};

/// Redis or Valkey as a store (docs/backends.md, "redis").
struct redis_config {
  /// HOST:PORT of the server; of a cluster some of its servers, separated by commas.
  std::string servers;
  bool is_cluster = false;
  /// Object bytes in one value; longer objects take several.
  uint64_t chunk_bytes = uint64_t{4} << 20;
  /// When the server drops an object, counted from its write; 0: never.
  duration ttl{0};
  /// User of the server's ACL; empty: its default user.
  std::string user;
  /// Where the password comes from: the first line of a file, or an environment variable; neither:
  /// there is none. Read for each connection.
  std::string password_file;
  std::string password_variable;
  bool uses_tls = false;
  /// PEM files: this client's certificate and key; both or neither.
  std::string tls_cert;
  std::string tls_key;
  /// Name in the server's certificate; empty: the host of its address.
  std::string tls_name;
};

/// A bucket of S3 as a store (docs/backends.md, "s3").
struct s3_config {
  /// http:// or https://, a host, and maybe a port; empty: AWS's in the region.
  std::string endpoint;
  std::string bucket;
  std::string region = "us-east-1";
  /// The bucket is part of the host's name, not of the path.
  bool is_virtual_host = false;
  /// Where the keys come from: a profile of a file as AWS's tools keep it; without a file the
  /// environment variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
  std::string credentials_file;
  std::string profile = "default";
  /// Longer objects are written and read in parts of this size, side by side.
  uint64_t part_bytes = uint64_t{16} << 20;
  /// Requests in progress of one worker thread.
  uint64_t connections = 16;
};

/// A store in another process (docs/backends.md, "external", and those that stand on it).
struct external_config {
  /// Backend `external`: the Unix socket of a running process, or a shell command that starts one.
  std::string socket;
  std::string command;
  /// Backend `dynamic`: a class of Python, named as for SGLang.
  std::string module_path;
  std::string class_name;
  /// The interpreter for stores written in Python; it has the package `hicache`.
  std::string python = "python3";
  /// How long a process may take until it answers.
  duration start_time = std::chrono::seconds{60};
  /// Memory that each worker thread shares with the process; the longest object fits.
  uint64_t window_bytes = uint64_t{32} << 20;
  /// What the process is given: a JSON object of the keys that hicache itself does not know.
  std::string options = "{}";
};

/// A folder on 3FS (docs/backends.md, "hf3fs").
struct hf3fs_config {
  /// Where 3FS is mounted; empty: found by the folder.
  std::string mount_point;
  /// 3FS's library for transfers that bypass FUSE.
  std::string library = "libhf3fs_api_shared.so";
};

/// Settings of the storage backend and the prefetcher, from --hicache-storage-backend-extra-config.
struct storage_config {
  /// Backend `tiered`: its stores, the fastest first. Only the settings of a store and `tier` are
  /// used of each.
  std::vector<storage_config> tiers;
  tier_config tier;
  redis_config redis;
  s3_config s3;
  external_config external;
  hf3fs_config hf3fs;
  /// Stores on servers: precedes the names of all objects. Empty: "hicache:" in Redis, "hicache/"
  /// in S3.
  std::string key_prefix;
  /// Likewise: a PEM file of authorities that may have signed the server's certificate; empty: the
  /// system's.
  std::string tls_ca;
  /// Backend `tiered`: a look-up asks all tiers at once.
  bool parallel_lookup = false;
  /// Backend `tiered`: memory for objects on their way between tiers.
  uint64_t copy_bytes = uint64_t{64} << 20;
  uint64_t prefetch_threshold = 256;
  /// Prefetch policy `timeout`: base + per_ki_token * tokens / 1024, at most max.
  duration prefetch_timeout_base = std::chrono::seconds{1};
  duration prefetch_timeout_per_ki_token = std::chrono::milliseconds{250};
  duration prefetch_timeout_max = std::chrono::seconds{30};
  /// Share of L2 set aside for pages being prefetched from L3.
  double prefetch_share = 0.25;
  /// Backends `file`, `disk` and `hf3fs`: the folder.
  std::string path;
  /// Bound on the bytes in a store of all ranks: of `memory`, `file`, `disk` and `hf3fs` all bytes,
  /// of the others those that this instance wrote. 0: unbounded.
  uint64_t max_bytes = 0;
  /// What is done to objects on their way to the store, joined by '+' in this order: "fp8", "zstd"
  /// or "lz4", "aes-256-gcm"; or "none" (docs/backends.md, "Codecs").
  std::string codecs = "none";
  /// 1 (fast) to 19.
  uint64_t zstd_level = 1;
  /// Where the keys for aes-256-gcm come from, one of both: a file, or a shell command that prints
  /// them.
  std::string key_file;
  std::string key_command;
  /// Threads that encode and decode.
  uint64_t codec_threads = 2;
  /// Memory for encoded objects on their way.
  uint64_t codec_bytes = uint64_t{256} << 20;
  /// Backend `cluster`: reads over the network even on the same machine.
  bool force_remote_reads = false;
  /// mha: a common multiple of the rank counts of all instances that share pages. The KV heads are
  /// split into this many objects, or one object per head if it is a multiple of the number of
  /// heads. 0: one object per KV head, which suits every number of ranks.
  uint64_t tp_lcm_size = 0;
  /// Worker threads of the backend.
  uint64_t threads = 2;
  breaker_policy breaker;
  /// Backend `cluster`: how this rank's segment is used.
  segment_policy segment;
  /// Backend `cluster`: how this rank re-replicates pages that lost copies.
  repair_policy repair;
  /// Backend `cluster`: replicas of each page, on different hosts.
  uint64_t replicas = 1;
  /// Backend `cluster`: name of the host for replica placement; the machine's name if empty.
  std::string host;
  /// Backend `cluster`: exports pages of L2 in place instead of copying them to the segment.
  bool zero_copy = false;
};

/// Address at which a process exposes its metrics to Prometheus.
struct metrics_options {
  std::string host = "127.0.0.1";
  /// 0: disabled.
  uint16_t port = 0;
};

/// Settings of one rank, from flags and configuration files. Equal on all ranks of an instance.
struct rank_config {
  uint32_t page_size = 64;
  uint32_t l1_pages = 4096;
  double hicache_ratio = 2.0;
  /// Gigabytes (1e9) of L2 per rank; 0 leaves it to the ratio.
  double hicache_size = 0;
  hicache::write_policy write_policy = write_policy::write_through;
  hicache::io_backend io_backend = io_backend::kernel;
  /// SMs that kernel copies may occupy, and copy threads of the host device; per direction.
  uint32_t io_sms = 4;
  uint32_t io_threads = 1;
  /// Layout of L2. page_head keeps each head of a page in one piece, as objects of L3 do.
  host_layout mem_layout = host_layout::page_head;
  /// A name for make_eviction_policy(); rank_extensions::eviction overrides it.
  std::string eviction_policy = "lru";
  hicache::page_order page_order = page_order::newest_first;
  /// An L2 part with fewer tokens is recomputed rather than loaded.
  uint32_t load_back_threshold = 10;
  /// Matches pairs of neighbouring tokens, for speculative decoding with EAGLE.
  bool bigram = false;
  /// Requests share no pages.
  bool disable_radix_cache = false;
  /// Share of the larger of L1 and L2 that the pins of one tenant may occupy.
  double pin_budget = 0.25;
  /// A use of the whole pinned prefix restarts the pin's time.
  bool pin_refresh = false;
  /// Background eviction, in shares of L1: when less is free than the first, steps evict to the
  /// second.
  double evict_below = 0.01;
  double evict_until = 0.02;
  /// Empty: no L3.
  std::string storage_backend;
  hicache::prefetch_policy prefetch_policy = prefetch_policy::wait_complete;
  hicache::prefetch_rule prefetch_when = prefetch_rule::always;
  /// Tokens that the engine computes per second, for prefetch_rule::faster; 0: measured.
  double prefill_speed = 0;
  /// JSON or @FILE; after finish() the JSON itself.
  std::string extra_config;
  /// HOST:PORT of the index; required by the cluster backend.
  std::string index;
  /// How long a start or attach tries to reach it.
  duration index_connect_time = std::chrono::seconds{10};
  /// Path or HOST:PORT of the node; required by the node backend. May differ between ranks.
  std::string node;
  uint64_t segment_bytes = 0;
  device_choice device;
  std::string model = "tiny";
  /// Absent or 0, here and below: taken from the model preset.
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
  /// Identifies the model's weights: name and revision, or a digest (launch/model_folder.hpp).
  /// Required by a shared L3, because equal shapes do not imply equal weights. This and the
  /// following settings, down to `numerics`, affect the names of pages and nothing else.
  std::string model_id;
  /// Quantisation of the KV elements, and its scales; empty if unquantised.
  std::string kv_quantisation;
  std::string kv_scales;
  /// RoPE settings unlike the model's own, as a JSON object; finish() makes its text canonical.
  std::string rope;
  /// First layer of the model that this instance keeps, for pipeline parallelism.
  uint32_t first_layer = 0;
  /// Anything else that changes an engine's results bitwise: kernels, precision of the attention.
  std::string numerics;
  std::string listen_host = "127.0.0.1";
  /// Transport of pages between machines (transport/page_channel.hpp).
  hicache::page_transport page_transport = page_transport::automatic;
  /// For all connections between processes of the cluster. Paths may differ between ranks.
  tls_files tls;
  /// Allows listen_host and kv_events to be reachable from other machines without TLS.
  bool insecure = false;
  /// Where rank 0 publishes cache events (transport/event_socket.hpp), and the topic. Empty:
  /// disabled.
  std::string kv_events;
  std::string kv_events_topic;
  /// Where subscribers request events that they missed. Empty: disabled.
  std::string kv_events_replay;
  event_format kv_events_format = event_format::sglang;
  duration step_timeout = std::chrono::seconds{30};
  /// Time limit of one L3 call.
  duration storage_timeout = std::chrono::seconds{10};
  storage_traffic traffic;
  /// How long a rank that shuts down waits for outstanding L3 calls.
  duration shutdown_grace = std::chrono::seconds{3};
  hicache::log_level log_level = log_level::info;
  /// File of the op log; with several ranks, each appends its number. Empty: disabled.
  std::string record_ops;
  /// HOST:PORT of rank 0's admin server (runtime/admin_server.hpp). Empty: disabled.
  std::string admin_listen;
  /// File with the admin token. May differ between ranks, because only rank 0 reads it.
  std::string admin_token_file;
  /// Metrics address of rank 0; each further rank uses the previous rank's port plus 1.
  metrics_options metrics;

  // -- derived by finish() ----------------------------------------------------

  storage_config storage;

  /// Fills in presets and checks every value.
  /// @param ranks Ranks of the instance.
  /// @returns invalid_argument with a sentence that names the flag and what was expected.
  result<void> finish(uint32_t ranks);

  /// How the model's heads are split over the ranks.
  /// @pre finish() succeeded, here and below.
  head_split split(uint32_t ranks) const;

  pool_shape shape(uint32_t ranks) const;

  /// Heads per object in L3: determined by storage.tp_lcm_size, or one.
  uint32_t heads_per_object() const;

  /// The head groups of each page that a rank holds.
  std::vector<head_group> head_groups(uint32_t rank, uint32_t ranks) const;

  /// A JSON object of everything, besides tokens and head group, that must be equal for objects to
  /// be interchangeable. Fingerprints are equal only if all settings in them are. Does not depend
  /// on the number of ranks.
  std::string fingerprint() const;

  uint32_t l2_pages(uint32_t ranks) const;
};

} // namespace hicache
