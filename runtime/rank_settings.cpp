#include "runtime/rank_settings.hpp"

#include "base/names.hpp"
#include "base/try.hpp"
#include "cache/prefix/event_message.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting_flags.hpp"
#include "transport/page_channel.hpp"

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

namespace {

using namespace std::literals;

/// The names of an enumeration's values.
template <class T>
constexpr auto names = std::array<std::string_view, 0>{};

template <>
constexpr auto names<write_policy> = std::array{"write_through"sv, "write_through_selective"sv,
                                                "write_back"sv};

template <>
constexpr auto names<page_order> = std::array{"newest_first"sv, "ascending"sv};

template <>
constexpr auto names<prefetch_policy> = std::array{"best_effort"sv, "wait_complete"sv, "timeout"sv};

template <>
constexpr auto names<prefetch_rule> = std::array{"always"sv, "faster"sv};

template <>
constexpr auto names<event_format> = std::array{"sglang"sv, "vllm"sv};

template <>
constexpr auto names<page_transport> = std::array{"auto"sv, "tcp"sv, "ucx"sv};

template <>
constexpr auto names<log_level> = std::array{"trace"sv, "debug"sv, "info"sv,
                                             "warn"sv,  "error"sv, "critical"sv};

template <>
constexpr auto names<element_type> = std::array{"fp8"sv, "fp16"sv, "bf16"sv, "fp32"sv};

template <class T>
result<T> parse_listed(std::string_view name) {
  return find_name<T>(names<T>, name);
}

template <class T>
requires(!names<T>.empty()) const char* to_string(T value) noexcept {
  return name_of(names<T>, value);
}

result<element_type> parse_element_type(std::string_view name) {
  return find_name<element_type>(names<element_type>, name, "an element type");
}

std::string to_string(const device_choice& choice) {
  return hicache::to_string(choice.kind)
         + (choice.number ? ":" + std::to_string(*choice.number) : std::string{});
}

/// Reference to a value converted by `Parse` and to_string(). An absent value has the empty name.
template <auto Parse, class Value>
setting_value named_value_of(Value& reference) {
  constexpr auto is_optional = requires(Value x) {
    x.has_value();
  };
  const auto name = [](const void* at) -> std::string {
    const auto& x = *static_cast<const Value*>(at);
    if constexpr (is_optional)
      return x ? to_string(*x) : "";
    else
      return to_string(x);
  };
  const auto take = [](void* at, std::string_view text) -> result<void> {
    auto& x = *static_cast<Value*>(at);
    if (is_optional && text.empty()) {
      x = Value{};
      return {};
    }
    x = HICACHE_TRY(Parse(text));
    return {};
  };
  return named_value{&reference, name, take};
}

/// `named_value_of` a member.
template <auto Member, auto Parse>
setting_value named(rank_config& config) {
  return named_value_of<Parse>(config.*Member);
}

/// `named` for the enumerations in the tables above.
template <auto Member, class T>
setting_value listed(rank_config& config) {
  return named<Member, parse_listed<T>>(config);
}

constexpr auto settings = std::to_array<rank_setting>({
  {"page-size", "TOKENS", at<&rank_config::page_size>, equal_on::sharers,
   "tokens per page, a power of two", within(1, 4096)},
  {"device-pages", "N", at<&rank_config::l1_pages>, equal_on::ranks, "pages of L1 on each rank",
   within(1, 1 << 30)},
  {"hicache-ratio", "X", at<&rank_config::hicache_ratio>, equal_on::ranks,
   "pages of L2 as a multiple of L1's"},
  {"hicache-size", "GB", at<&rank_config::hicache_size>, equal_on::ranks,
   "L2 of each rank in units of 1e9 bytes; overrides the ratio unless 0", within(0, 1e9)},
  {"hicache-write-policy", "NAME", listed<&rank_config::write_policy, write_policy>,
   equal_on::ranks,
   "when pages go to L2: `write_through` (at the first insert), `write_through_selective` (at the "
   "second) or `write_back` (when L1 needs their room); where L2 is full, all wait for that; see "
   "[prefix-cache.md](prefix-cache.md#write-policies)"},
  {"hicache-io-backend", "NAME", named<&rank_config::io_backend, parse_io_backend>, equal_on::ranks,
   "how pages are copied between L1 and L2: `direct` (the GPU's copy hardware; memcpy on the host "
   "device) or `kernel` (a few SMs, or threads, gather and scatter)"},
  {"hicache-io-sms", "N", at<&rank_config::io_sms>, equal_on::ranks,
   "SMs that the copy kernels may occupy, each direction for itself", within(1, 1024)},
  {"hicache-io-threads", "N", at<&rank_config::io_threads>, equal_on::ranks,
   "threads that copy on the host device, each direction for itself", within(1, 256)},
  {"hicache-mem-layout", "NAME", named<&rank_config::mem_layout, parse_host_layout>,
   equal_on::sharers,
   "layout of L2: `layer_first`, `page_first`, `page_first_direct` or `page_head`; "
   "[memory.md](memory.md) shows them"},
  {"radix-eviction-policy", "NAME", at<&rank_config::eviction_policy>, equal_on::ranks,
   "which page goes first: `lru`, `lfu`, `fifo`, `mru`, `filo`, `priority` or `slru`, in any case "
   "of letters; see [prefix-cache.md](prefix-cache.md#eviction)"},
  {"page-order", "NAME", listed<&rank_config::page_order, page_order>, equal_on::ranks,
   "in which order free pages of L1, and of L2, are handed out: `newest_first` (the one freed "
   "last), or `ascending` (freed pages are sorted when the list runs short, so that requests get "
   "runs of neighbouring pages)"},
  {"load-back-threshold", "TOKENS", at<&rank_config::load_back_threshold>, equal_on::ranks,
   "tokens in L2 that are computed rather than [loaded](prefix-cache.md#back-to-l1), if there are "
   "fewer"},
  {"bigram", "", at<&rank_config::bigram>, equal_on::ranks,
   "pages are of pairs of neighbouring tokens, for [speculative "
   "decoding](prefix-cache.md#speculative-decoding) with EAGLE"},
  {"disable-radix-cache", "", at<&rank_config::disable_radix_cache>, equal_on::ranks,
   "share nothing between requests: no radix tree, no L2, no L3. Refused together with "
   "`--hicache-storage-backend`"},
  {"evict-below", "X", at<&rank_config::evict_below>, equal_on::ranks,
   "as soon as a smaller share of L1 is free, steps evict, and write to L2 what it lacks, so that "
   "no request waits for an eviction; 0 never"},
  {"evict-until", "X", at<&rank_config::evict_until>, equal_on::ranks,
   "share of free pages at which that stops; `--evict-below` to 0.5"},
  {"pin-budget", "X", at<&rank_config::pin_budget>, equal_on::ranks,
   "share of the larger of L1 and L2, counted in pages, that the [pins](prefix-cache.md#pins) of "
   "one tenant may keep; 0 to 1"},
  {"pin-refresh", "", at<&rank_config::pin_refresh>, equal_on::ranks,
   "a request that uses all that is pinned begins the pin's time anew"},
  {"hicache-storage-backend", "NAME", at<&rank_config::storage_backend>, equal_on::ranks,
   "L3: `memory`, `file`, `disk`, `hf3fs`, `cluster`, `node`, `redis`, `s3`, `external`, "
   "`dynamic`, `mooncake`, `nixl`, `lmcache` or `tiered`; none if absent; "
   "see "
   "[backends.md](backends.md)"},
  {"hicache-storage-prefetch-policy", "NAME",
   named<&rank_config::prefetch_policy, parse_prefetch_policy>, equal_on::ranks,
   "when a prefetch ends: `wait_complete` (all that L3 has arrived), `best_effort` (what has "
   "arrived when the request may run) or `timeout` (all has arrived, but after a time that grows "
   "with the length at the latest)"},
  {"prefetch-when", "NAME", listed<&rank_config::prefetch_when, prefetch_rule>, equal_on::ranks,
   "which pages a prefetch takes of those that L3 has: `always` (all) or `faster` (those that are "
   "estimated to arrive sooner than the engine could compute them); see "
   "[policies.md](policies.md#load-or-recompute)"},
  {"prefill-speed", "X", at<&rank_config::prefill_speed>, equal_on::nobody,
   "tokens that the engine computes per second, for `--prefetch-when faster`; 0: measured from "
   "the time between allocations and inserts",
   within(0, 1e9)},
  {"hicache-storage-backend-extra-config", "JSON|@FILE", at<&rank_config::extra_config>,
   equal_on::ranks, "settings of L3, see [below](#extra-configuration-of-l3)"},
  {"hicache-storage-timeout", "TIME", at<&rank_config::storage_timeout>, equal_on::nobody,
   "how long a call of L3 may take. What has not arrived then is computed; see "
   "[operations.md](operations.md#an-l3-that-fails-or-hangs)"},
  {"hicache-storage-batch-pages", "N", at<&rank_config::traffic, &storage_traffic::batch_pages>,
   equal_on::nobody,
   "pages in each call of L3 that reads or writes them. Fewer, where pages are large and L3 is "
   "slow, keep a call within `--hicache-storage-timeout`",
   within(1, 1024)},
  {"hicache-storage-batches", "N", at<&rank_config::traffic, &storage_traffic::batches_in_flight>,
   equal_on::nobody,
   "such calls that each prefetch has in flight, and all writes together: about two for each of "
   "the `threads` of L3",
   within(1, 64)},
  {"hicache-storage-backup-attempts", "N",
   at<&rank_config::traffic, &storage_traffic::backup_attempts>, equal_on::nobody,
   "attempts to write a page to L3 that fails, before it is left unwritten with those that "
   "follow it",
   within(1, 16)},
  {"hicache-storage-backup-pause", "TIME",
   at<&rank_config::traffic, &storage_traffic::backup_pause>, equal_on::nobody,
   "pause before the second attempt; it doubles before each further one", within(0, 60)},
  {"index", "PLACE", at<&rank_config::index>, equal_on::ranks,
   "processes of the cluster's index to ask first, `HOST:PORT[,…]`; one that runs is enough. Also "
   "`srv://NAME[?server=HOST:PORT]`, an SRV record in the DNS, or `etcd://HOST:PORT[,…]/PREFIX`, "
   "keys of etcd (`etcds://` by TLS): see [finding the index](cluster.md#finding-the-index). "
   "Needed by `cluster`"},
  {"index-connect-time", "TIME", at<&rank_config::index_connect_time>, equal_on::nobody,
   "how long a rank that starts, or attaches `cluster`, tries to reach the index before it fails",
   within(0, 3600)},
  {"node", "PATH|HOST:PORT", at<&rank_config::node>, equal_on::nobody,
   "where the [node](node.md) listens: that of this host at its socket, one of another machine at "
   "its `--listen`, with the flags of TLS. Needed by `node`"},
  {"segment-size", "SIZE", bytes_at<&rank_config::segment_bytes>, equal_on::ranks,
   "memory that each rank exports to L3 (`cluster`); 0: none"},
  {"listen-host", "HOST", at<&rank_config::listen_host>, equal_on::nobody,
   "address at which peers on other machines read this rank's segment and ask it to copy, pin or "
   "drain; one that they reach needs TLS or `--insecure`"},
  {"page-transport", "NAME", named<&rank_config::page_transport, parse_page_transport>,
   equal_on::nobody,
   "what pages travel by between machines: `tcp` (encrypted with TLS), `ucx` (RDMA; the devices "
   "of `UCX_NET_DEVICES` if that is set) or `auto`: `ucx` where there are RDMA devices. Peers of "
   "different minds use TCP"},
  {"insecure", "", at<&rank_config::insecure>, equal_on::nobody,
   "lets `--listen-host`, `--kv-events` and `--rendezvous` be reached by other machines without "
   "TLS"},
  {"device", "NAME", named<&rank_config::device, parse_device_choice>, equal_on::ranks,
   "where L1 lives: `cuda`, `cuda:N` (that device), `host` (host memory stands in), or `auto` "
   "(CUDA if this build has it and a GPU answers). Without a number a rank takes the device of "
   "its number on the machine; ranks may name different ones "
   "([integrating.md](integrating.md#devices))"},
  {"model", "NAME", at<&rank_config::model>, equal_on::sharers,
   "shape of the KV: `tiny`, `llama-3.1-8b`, `llama-3.1-70b`, `qwen3-32b`, `deepseek-v3` (mla), "
   "`deepseek-v3.2` (nsa)"},
  {"attention", "NAME", named<&rank_config::attention, parse_attention_kind>, equal_on::sharers,
   "kind of attention: `mha` (and so GQA and MQA), `mla` or `nsa`; empty takes the model's"},
  {"layers", "N", at<&rank_config::layers>, equal_on::sharers, "layers; 0 takes the model's"},
  {"kv-heads", "N", at<&rank_config::kv_heads>, equal_on::sharers,
   "mha: KV heads of the whole model, a multiple of the ranks, or a divisor: then [each head is "
   "on several ranks](memory.md#l1); 0 takes the model's"},
  {"head-dim", "N", at<&rank_config::head_dim>, equal_on::sharers,
   "elements per head of K, or of the latent (mla, nsa); 0 takes the model's"},
  {"v-head-dim", "N", at<&rank_config::v_head_dim>, equal_on::sharers,
   "mha: elements per head of V; 0 takes that of K"},
  {"index-key-bytes", "N", at<&rank_config::index_key_bytes>, equal_on::sharers,
   "nsa: bytes of a token's index key and its scale in one layer; 0 takes 132"},
  {"dtype", "NAME", named<&rank_config::dtype, parse_element_type>, equal_on::sharers,
   "element type: `fp8`, `fp16`, `bf16` or `fp32`; empty takes the model's"},
  {"namespace", "NAME", at<&rank_config::name_space>, equal_on::sharers,
   "pages of different namespaces are never exchanged"},
  {"model-id", "TEXT", at<&rank_config::model_id>, equal_on::sharers,
   "whose KV it is: name and revision of the model, or what [`hicachectl "
   "model-id`](#hicachectl-model-id) prints. Needed by an L3 that is shared (`file`, `cluster`); "
   "see [Whose KV it is](backends.md#whose-kv-it-is)"},
  {"kv-quantisation", "TEXT", at<&rank_config::kv_quantisation>, equal_on::sharers,
   "how elements of the KV are quantised, such as `fp8_e4m3`; empty if they are not"},
  {"kv-scales", "TEXT", at<&rank_config::kv_scales>, equal_on::sharers,
   "name or digest of the scales that they are quantised with"},
  {"rope", "JSON", at<&rank_config::rope>, equal_on::sharers,
   "RoPE settings where the engine does not take the model's own, such as `{\"rope_theta\": "
   "500000.0}`; order and spaces do not matter"},
  {"first-layer", "N", at<&rank_config::first_layer>, equal_on::sharers,
   "of the model's layers, the first that this instance keeps: the stage of a pipeline, which has "
   "`--layers` from there on"},
  {"numerics", "TEXT", at<&rank_config::numerics>, equal_on::sharers,
   "whatever else makes the bits of an engine's KV differ: its kernels, the precision of its "
   "attention"},
  {"record-ops", "FILE", at<&rank_config::record_ops>, equal_on::nobody,
   "write every operation and step to an [op log](oplog.md#recording-a-rank---record-ops); with "
   "several ranks, each writes `FILE.RANK`"},
  {"kv-events", "ENDPOINT", at<&rank_config::kv_events>, equal_on::ranks,
   "where rank 0 publishes [for routers](prefix-cache.md#events-for-routers), over ZeroMQ, which "
   "pages L1 and L2 have: `tcp://*:5557` or `ipc://FILE` to be subscribed to, `tcp://HOST:PORT` "
   "to connect to a router; nowhere if absent. Pages are named then, which costs a SHA-256 over "
   "each prompt's new tokens"},
  {"kv-events-topic", "TOPIC", at<&rank_config::kv_events_topic>, equal_on::ranks,
   "topic of these events"},
  {"kv-events-replay", "ENDPOINT", at<&rank_config::kv_events_replay>, equal_on::ranks,
   "where rank 0 is asked for events that a router missed; nowhere if absent"},
  {"kv-events-format", "NAME", named<&rank_config::kv_events_format, parse_event_format>,
   equal_on::ranks, "whose events they are: `sglang` or `vllm`"},
  {"admin-listen", "HOST:PORT|unix:PATH", at<&rank_config::admin_listen>, equal_on::ranks,
   "where rank 0 answers operators, see "
   "[operations.md](operations.md#attaching-and-detaching-l3); port 0 picks a free one; nowhere "
   "if absent. TCP needs `--admin-token-file`; a Unix socket is its user's alone"},
  {"admin-token-file", "FILE", at<&rank_config::admin_token_file>, equal_on::nobody,
   "file whose first line is the token that operators need: 16 to 1024 visible ASCII characters, "
   "in a file that only its owner may read or write. Rank 0 alone reads it"},
  {"metrics-port", "PORT", at<&rank_config::metrics, &metrics_options::port>, equal_on::ranks,
   "port at which Prometheus finds [metrics](operations.md#metrics) of rank 0; rank *r* listens "
   "on PORT + *r*; 0 is nowhere",
   within(0, 65535)},
  {"metrics-host", "HOST", at<&rank_config::metrics, &metrics_options::host>, equal_on::nobody,
   "address at which Prometheus may ask, without a password"},
  {"step-timeout", "TIME", at<&rank_config::step_timeout>, equal_on::nobody,
   "how long a step, and a turn of `hicache-replay`, waits for the slowest rank before it fails "
   "with `rank_unresponsive`"},
  {"shutdown-grace", "TIME", at<&rank_config::shutdown_grace>, equal_on::nobody,
   "how long a rank that ends waits for calls of L3 that have not returned, before it leaves them "
   "behind"},
  {"log-level", "NAME", listed<&rank_config::log_level, log_level>, equal_on::nobody,
   "`trace`, `debug`, `info`, `warn`, `error` or `critical`"},
});

} // namespace

const char* to_string(prefetch_policy policy) noexcept {
  return name_of(names<prefetch_policy>, policy);
}

result<prefetch_policy> parse_prefetch_policy(std::string_view name) {
  return parse_listed<prefetch_policy>(name);
}

const char* to_string(page_transport transport) noexcept {
  return name_of(names<page_transport>, transport);
}

const char* to_string(log_level level) noexcept {
  return name_of(names<log_level>, level);
}

const char* to_string(element_type type) noexcept {
  return name_of(names<element_type>, type);
}

setting_value by_name(log_level& level) {
  return named_value_of<parse_listed<log_level>>(level);
}

std::span<const rank_setting> rank_settings() {
  return settings;
}

void add_rank_flags(CLI::App& app, rank_config& config) {
  app.set_config("--config", "", "TOML file with the same names as the flags; flags win")
    ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  for (const auto& each : settings)
    add_flag(app, each, config);
  add_tls_flags(app, config.tls);
}

std::vector<std::pair<std::string, std::string>> shared_settings(const rank_config& config) {
  auto list = std::vector<std::pair<std::string, std::string>>{};
  auto copy = config;
  // Device numbers may differ between ranks.
  copy.device.number.reset();
  for (const auto& each : settings)
    if (each.equal != equal_on::nobody)
      list.emplace_back(each.name, text_of(each.at(copy)));
  return list;
}

} // namespace hicache
