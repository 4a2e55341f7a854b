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
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// The names of an enumeration's values.
template <class T>
constexpr auto names = std::array<std::string_view, 0>{};

template <>
constexpr auto names<write_policy> = std::to_array<std::string_view>({"write_through",
                                                                      "write_through_selective",
                                                                      "write_back"});

template <>
constexpr auto names<page_order> = std::to_array<std::string_view>({"newest_first", "ascending"});

template <>
constexpr auto names<prefetch_policy> = std::to_array<std::string_view>({"best_effort",
                                                                         "wait_complete",
                                                                         "timeout"});

template <>
constexpr auto names<prefetch_rule> = std::to_array<std::string_view>({"always", "faster"});

template <>
constexpr auto names<event_format> = std::to_array<std::string_view>({"sglang", "vllm"});

template <>
constexpr auto names<page_transport> = std::to_array<std::string_view>({"auto", "tcp", "ucx"});

template <>
constexpr auto names<log_level> = std::to_array<std::string_view>({"trace", "debug", "info", "warn",
                                                                   "error", "critical"});

template <>
constexpr auto names<element_type> = std::to_array<std::string_view>({"fp8", "fp16", "bf16",
                                                                      "fp32"});

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
  {{"page-size",
    "TOKENS",
    at<&rank_config::page_size>,
    "tokens per page, a power of two",
    {1, 4096}},
   equal_on::sharers},
  {{"device-pages", "N", at<&rank_config::l1_pages>, "pages of L1 on each rank", {1, 1 << 30}},
   equal_on::ranks},
  {{"hicache-ratio", "X", at<&rank_config::hicache_ratio>, "pages of L2 as a multiple of L1's"},
   equal_on::ranks},
  {{"hicache-size",
    "GB",
    at<&rank_config::hicache_size>,
    "L2 of each rank in units of 1e9 bytes; overrides the ratio unless 0",
    {0, 1e9}},
   equal_on::ranks},
  {{"hicache-write-policy", "NAME", listed<&rank_config::write_policy, write_policy>,
    "when pages go to L2: `write_through` (at the first insert), `write_through_selective` (at the "
    "second) or `write_back` (when L1 needs their room); where L2 is full, all wait for that; see "
    "[prefix-cache.md](prefix-cache.md#write-policies)"},
   equal_on::ranks},
  {{"hicache-io-backend", "NAME", named<&rank_config::io_backend, parse_io_backend>,
    "how pages are copied between L1 and L2: `direct` (the GPU's copy hardware; memcpy on the host "
    "device) or `kernel` (a few SMs, or threads, gather and scatter)"},
   equal_on::ranks},
  {{"hicache-io-sms",
    "N",
    at<&rank_config::io_sms>,
    "SMs that the copy kernels may occupy, each direction for itself",
    {1, 1024}},
   equal_on::ranks},
  {{"hicache-io-threads",
    "N",
    at<&rank_config::io_threads>,
    "threads that copy on the host device, each direction for itself",
    {1, 256}},
   equal_on::ranks},
  {{"hicache-mem-layout", "NAME", named<&rank_config::mem_layout, parse_host_layout>,
    "layout of L2: `layer_first`, `page_first`, `page_first_direct` or `page_head`; "
    "[memory.md](memory.md) shows them"},
   equal_on::sharers},
  {{"radix-eviction-policy", "NAME", at<&rank_config::eviction_policy>,
    "which page goes first: `lru`, `lfu`, `fifo`, `mru`, `filo`, `priority` or `slru`, in any case "
    "of letters; see [prefix-cache.md](prefix-cache.md#eviction)"},
   equal_on::ranks},
  {{"page-order", "NAME", listed<&rank_config::page_order, page_order>,
    "in which order free pages of L1, and of L2, are handed out: `newest_first` (the one freed "
    "last), or `ascending` (freed pages are sorted when the list runs short, so that requests get "
    "runs of neighbouring pages)"},
   equal_on::ranks},
  {{"load-back-threshold", "TOKENS", at<&rank_config::load_back_threshold>,
    "tokens in L2 that are computed rather than [loaded](prefix-cache.md#back-to-l1), if there are "
    "fewer"},
   equal_on::ranks},
  {{"bigram", "", at<&rank_config::bigram>,
    "pages are of pairs of neighbouring tokens, for [speculative "
    "decoding](prefix-cache.md#speculative-decoding) with EAGLE"},
   equal_on::ranks},
  {{"disable-radix-cache", "", at<&rank_config::disable_radix_cache>,
    "share nothing between requests: no radix tree, no L2, no L3. Refused together with "
    "`--hicache-storage-backend`"},
   equal_on::ranks},
  {{"evict-below", "X", at<&rank_config::evict_below>,
    "as soon as a smaller share of L1 is free, steps evict, and write to L2 what it lacks, so that "
    "no request waits for an eviction; 0 never"},
   equal_on::ranks},
  {{"evict-until", "X", at<&rank_config::evict_until>,
    "share of free pages at which that stops; `--evict-below` to 0.5"},
   equal_on::ranks},
  {{"pin-budget", "X", at<&rank_config::pin_budget>,
    "share of the larger of L1 and L2, counted in pages, that the [pins](prefix-cache.md#pins) of "
    "one tenant may keep; 0 to 1"},
   equal_on::ranks},
  {{"pin-refresh", "", at<&rank_config::pin_refresh>,
    "a request that uses all that is pinned begins the pin's time anew"},
   equal_on::ranks},
  {{"hicache-storage-backend", "NAME", at<&rank_config::storage_backend>,
    "L3: `memory`, `file`, `disk`, `hf3fs`, `cluster`, `node`, `redis`, `s3`, `external`, "
    "`dynamic`, `mooncake`, `nixl`, `lmcache` or `tiered`; none if absent; "
    "see "
    "[backends.md](backends.md)"},
   equal_on::ranks},
  {{"hicache-storage-prefetch-policy", "NAME",
    named<&rank_config::prefetch_policy, parse_prefetch_policy>,
    "when a prefetch ends: `wait_complete` (all that L3 has arrived), `best_effort` (what has "
    "arrived when the request may run) or `timeout` (all has arrived, but after a time that grows "
    "with the length at the latest)"},
   equal_on::ranks},
  {{"prefetch-when", "NAME", listed<&rank_config::prefetch_when, prefetch_rule>,
    "which pages a prefetch takes of those that L3 has: `always` (all) or `faster` (those that are "
    "estimated to arrive sooner than the engine could compute them); see "
    "[policies.md](policies.md#load-or-recompute)"},
   equal_on::ranks},
  {{"prefill-speed",
    "X",
    at<&rank_config::prefill_speed>,
    "tokens that the engine computes per second, for `--prefetch-when faster`; 0: measured from "
    "the time between allocations and inserts",
    {0, 1e9}},
   equal_on::nobody},
  {{"hicache-storage-backend-extra-config", "JSON|@FILE", at<&rank_config::extra_config>,
    "settings of L3, see [below](#extra-configuration-of-l3)"},
   equal_on::ranks},
  {{"hicache-storage-timeout", "TIME", at<&rank_config::storage_timeout>,
    "how long a call of L3 may take. What has not arrived then is computed; see "
    "[operations.md](operations.md#an-l3-that-fails-or-hangs)"},
   equal_on::nobody},
  {{"hicache-storage-batch-pages",
    "N",
    at<&rank_config::traffic, &storage_traffic::batch_pages>,
    "pages in each call of L3 that reads or writes them. Fewer, where pages are large and L3 is "
    "slow, keep a call within `--hicache-storage-timeout`",
    {1, 1024}},
   equal_on::nobody},
  {{"hicache-storage-batches",
    "N",
    at<&rank_config::traffic, &storage_traffic::batches_in_flight>,
    "such calls that each prefetch has in flight, and all writes together: about two for each of "
    "the `threads` of L3",
    {1, 64}},
   equal_on::nobody},
  {{"hicache-storage-backup-attempts",
    "N",
    at<&rank_config::traffic, &storage_traffic::backup_attempts>,
    "attempts to write a page to L3 that fails, before it is left unwritten with those that "
    "follow it",
    {1, 16}},
   equal_on::nobody},
  {{"hicache-storage-backup-pause",
    "TIME",
    at<&rank_config::traffic, &storage_traffic::backup_pause>,
    "pause before the second attempt; it doubles before each further one",
    {0, 60}},
   equal_on::nobody},
  {{"index", "PLACE", at<&rank_config::index>,
    "processes of the cluster's index to ask first, `HOST:PORT[,…]`; one that runs is enough. Also "
    "`srv://NAME[?server=HOST:PORT]`, an SRV record in the DNS, or `etcd://HOST:PORT[,…]/PREFIX`, "
    "keys of etcd (`etcds://` by TLS): see [finding the index](cluster.md#finding-the-index). "
    "Needed by `cluster`"},
   equal_on::ranks},
  {{"index-connect-time",
    "TIME",
    at<&rank_config::index_connect_time>,
    "how long a rank that starts, or attaches `cluster`, tries to reach the index before it fails",
    {0, 3600}},
   equal_on::nobody},
  {{"node", "PATH|HOST:PORT", at<&rank_config::node>,
    "where the [node](node.md) listens: that of this host at its socket, one of another machine at "
    "its `--listen`, with the flags of TLS. Needed by `node`"},
   equal_on::nobody},
  {{"segment-size", "SIZE", bytes_at<&rank_config::segment_bytes>,
    "memory that each rank exports to L3 (`cluster`); 0: none"},
   equal_on::ranks},
  {{"listen-host", "HOST", at<&rank_config::listen_host>,
    "address at which peers on other machines read this rank's segment and ask it to copy, pin or "
    "drain; one that they reach needs TLS or `--insecure`"},
   equal_on::nobody},
  {{"page-transport", "NAME", named<&rank_config::page_transport, parse_page_transport>,
    "what pages travel by between machines: `tcp` (encrypted with TLS), `ucx` (RDMA; the devices "
    "of `UCX_NET_DEVICES` if that is set) or `auto`: `ucx` where there are RDMA devices. Peers of "
    "different minds use TCP"},
   equal_on::nobody},
  {{"insecure", "", at<&rank_config::insecure>,
    "lets `--listen-host`, `--kv-events` and `--rendezvous` be reached by other machines without "
    "TLS"},
   equal_on::nobody},
  {{"device", "NAME", named<&rank_config::device, parse_device_choice>,
    "where L1 lives: `cuda`, `cuda:N` (that device), `host` (host memory stands in), or `auto` "
    "(CUDA if this build has it and a GPU answers). Without a number a rank takes the device of "
    "its number on the machine; ranks may name different ones "
    "([integrating.md](integrating.md#devices))"},
   equal_on::ranks},
  {{"model", "NAME", at<&rank_config::model>,
    "shape of the KV: `tiny`, `llama-3.1-8b`, `llama-3.1-70b`, `qwen3-32b`, `deepseek-v3` (mla), "
    "`deepseek-v3.2` (nsa)"},
   equal_on::sharers},
  {{"attention", "NAME", named<&rank_config::attention, parse_attention_kind>,
    "kind of attention: `mha` (and so GQA and MQA), `mla` or `nsa`; empty takes the model's"},
   equal_on::sharers},
  {{"layers", "N", at<&rank_config::layers>, "layers; 0 takes the model's"}, equal_on::sharers},
  {{"kv-heads", "N", at<&rank_config::kv_heads>,
    "mha: KV heads of the whole model, a multiple of the ranks, or a divisor: then [each head is "
    "on several ranks](memory.md#l1); 0 takes the model's"},
   equal_on::sharers},
  {{"head-dim", "N", at<&rank_config::head_dim>,
    "elements per head of K, or of the latent (mla, nsa); 0 takes the model's"},
   equal_on::sharers},
  {{"v-head-dim", "N", at<&rank_config::v_head_dim>,
    "mha: elements per head of V; 0 takes that of K"},
   equal_on::sharers},
  {{"index-key-bytes", "N", at<&rank_config::index_key_bytes>,
    "nsa: bytes of a token's index key and its scale in one layer; 0 takes 132"},
   equal_on::sharers},
  {{"dtype", "NAME", named<&rank_config::dtype, parse_element_type>,
    "element type: `fp8`, `fp16`, `bf16` or `fp32`; empty takes the model's"},
   equal_on::sharers},
  {{"namespace", "NAME", at<&rank_config::name_space>,
    "pages of different namespaces are never exchanged"},
   equal_on::sharers},
  {{"model-id", "TEXT", at<&rank_config::model_id>,
    "whose KV it is: name and revision of the model, or what [`hicachectl "
    "model-id`](#hicachectl-model-id) prints. Needed by an L3 that is shared (`file`, `cluster`); "
    "see [Whose KV it is](backends.md#whose-kv-it-is)"},
   equal_on::sharers},
  {{"kv-quantisation", "TEXT", at<&rank_config::kv_quantisation>,
    "how elements of the KV are quantised, such as `fp8_e4m3`; empty if they are not"},
   equal_on::sharers},
  {{"kv-scales", "TEXT", at<&rank_config::kv_scales>,
    "name or digest of the scales that they are quantised with"},
   equal_on::sharers},
  {{"rope", "JSON", at<&rank_config::rope>,
    "RoPE settings where the engine does not take the model's own, such as `{\"rope_theta\": "
    "500000.0}`; order and spaces do not matter"},
   equal_on::sharers},
  {{"first-layer", "N", at<&rank_config::first_layer>,
    "of the model's layers, the first that this instance keeps: the stage of a pipeline, which has "
    "`--layers` from there on"},
   equal_on::sharers},
  {{"numerics", "TEXT", at<&rank_config::numerics>,
    "whatever else makes the bits of an engine's KV differ: its kernels, the precision of its "
    "attention"},
   equal_on::sharers},
  {{"record-ops", "FILE", at<&rank_config::record_ops>,
    "write every operation and step to an [op log](oplog.md#recording-a-rank---record-ops); with "
    "several ranks, each writes `FILE.RANK`"},
   equal_on::nobody},
  {{"kv-events", "ENDPOINT", at<&rank_config::kv_events>,
    "where rank 0 publishes [for routers](prefix-cache.md#events-for-routers), over ZeroMQ, which "
    "pages L1 and L2 have: `tcp://*:5557` or `ipc://FILE` to be subscribed to, `tcp://HOST:PORT` "
    "to connect to a router; nowhere if absent. Pages are named then, which costs a SHA-256 over "
    "each prompt's new tokens"},
   equal_on::ranks},
  {{"kv-events-topic", "TOPIC", at<&rank_config::kv_events_topic>, "topic of these events"},
   equal_on::ranks},
  {{"kv-events-replay", "ENDPOINT", at<&rank_config::kv_events_replay>,
    "where rank 0 is asked for events that a router missed; nowhere if absent"},
   equal_on::ranks},
  {{"kv-events-format", "NAME", named<&rank_config::kv_events_format, parse_event_format>,
    "whose events they are: `sglang` or `vllm`"},
   equal_on::ranks},
  {{"admin-listen", "HOST:PORT|unix:PATH", at<&rank_config::admin_listen>,
    "where rank 0 answers operators, see "
    "[operations.md](operations.md#attaching-and-detaching-l3); port 0 picks a free one; nowhere "
    "if absent. TCP needs `--admin-token-file`; a Unix socket is its user's alone"},
   equal_on::ranks},
  {{"admin-token-file", "FILE", at<&rank_config::admin_token_file>,
    "file whose first line is the token that operators need: 16 to 1024 visible ASCII characters, "
    "in a file that only its owner may read or write. Rank 0 alone reads it"},
   equal_on::nobody},
  {{"metrics-port",
    "PORT",
    at<&rank_config::metrics, &metrics_options::port>,
    "port at which Prometheus finds [metrics](operations.md#metrics) of rank 0; rank *r* listens "
    "on PORT + *r*; 0 is nowhere",
    {0, 65535}},
   equal_on::ranks},
  {{"metrics-host", "HOST", at<&rank_config::metrics, &metrics_options::host>,
    "address at which Prometheus may ask, without a password"},
   equal_on::nobody},
  {{"step-timeout", "TIME", at<&rank_config::step_timeout>,
    "how long a step, and a turn of `hicache-replay`, waits for the slowest rank before it fails "
    "with `rank_unresponsive`"},
   equal_on::nobody},
  {{"shutdown-grace", "TIME", at<&rank_config::shutdown_grace>,
    "how long a rank that ends waits for calls of L3 that have not returned, before it leaves them "
    "behind"},
   equal_on::nobody},
  {{"log-level", "NAME", listed<&rank_config::log_level, log_level>,
    "`trace`, `debug`, `info`, `warn`, `error` or `critical`"},
   equal_on::nobody},
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
