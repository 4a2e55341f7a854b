#include "runtime/rank_config.hpp"

#include "base/limits.hpp"
#include "base/units.hpp"
#include "cache/event_message.hpp"
#include "runtime/admin_server.hpp"
#include "runtime/network_flags.hpp"
#include "transport/page_channel.hpp"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>

namespace hicache {

namespace {

/// KV shapes of models that people ask for by name; `tiny` is small enough for a laptop to cache
/// millions of tokens.
struct model_preset {
  std::string_view name;
  std::string_view attention;
  uint32_t layers;
  uint32_t kv_heads;
  /// Of the latent for mla and nsa: what the models' cards call kv_lora_rank and qk_rope_head_dim.
  uint32_t head_dim;
  std::string_view dtype;
};

constexpr std::array<model_preset, 6> presets = {{
  {"tiny", "mha", 2, 4, 8, "bf16"},
  {"llama-3.1-8b", "mha", 32, 8, 128, "bf16"},
  {"llama-3.1-70b", "mha", 80, 8, 128, "bf16"},
  {"qwen3-32b", "mha", 64, 8, 128, "bf16"},
  {"deepseek-v3", "mla", 61, 1, 512 + 64, "bf16"},
  {"deepseek-v3.2", "nsa", 61, 1, 512 + 64, "bf16"},
}};

/// An index key of 128 elements in fp8 and their scale in fp32 (DeepSeek-V3.2).
constexpr uint32_t default_index_key_bytes = 128 + 4;

struct dtype_size {
  std::string_view name;
  uint32_t bytes;
};

constexpr std::array<dtype_size, 4> dtypes = {{{"fp8", 1}, {"fp16", 2}, {"bf16", 2}, {"fp32", 4}}};

template <class Table>
std::string names_of(const Table& table) {
  auto names = std::string{};
  for (const auto& entry : table)
    names += (names.empty() ? "" : ", ") + std::string{entry.name};
  return names;
}

template <class Table>
auto find_in(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(), [&](const auto& x) { return x.name == name; });
}

tl::unexpected<error> bad(std::string_view flag, std::string_view value,
                          std::string_view expected) {
  return fail(ec::invalid_argument, absl::StrFormat("%s: '%s' is not %s", flag, value, expected));
}

/// A choice that is part of the interface although this version offers only some of its values.
result<void> offered(std::string_view flag, const std::string& value,
                     std::initializer_list<std::string_view> now,
                     std::initializer_list<std::string_view> later) {
  if (std::find(now.begin(), now.end(), value) != now.end())
    return {};
  auto names = std::string{};
  for (const auto name : now)
    names += (names.empty() ? "" : " or ") + std::string{name};
  if (std::find(later.begin(), later.end(), value) != later.end())
    return fail(
      ec::invalid_argument,
      absl::StrFormat("%s: %s is not offered by this version; expected %s", flag, value, names));
  return bad(flag, value, "known; expected " + names);
}

result<void> check_admin(const std::string& listen, const std::string& token_file) {
  if (!listen.empty())
    return check_admin_options({listen, token_file});
  if (!token_file.empty())
    return fail(ec::invalid_argument, "--admin-token-file is of use with --admin-listen alone");
  return {};
}

constexpr std::array<std::string_view, 2> page_orders = {"newest_first", "ascending"};

/// Events are sent in clear.
result<void> check_events(const std::string& flag, const std::string& endpoint, bool insecure) {
  const auto scheme = std::string_view{"tcp://"};
  if (insecure || !endpoint.starts_with(scheme))
    return {};
  auto host = endpoint.substr(scheme.size(), endpoint.rfind(':') - scheme.size());
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  if (is_loopback(host))
    return {};
  return fail(ec::invalid_argument,
              flag + ": other machines reach '" + endpoint
                + "'; expected --insecure to let everyone there read the tokens of prompts, or "
                  "tcp://127.0.0.1:PORT or ipc://FILE");
}

result<void> check_events(const rank_config& config) {
  if (auto allowed = check_events("--kv-events", config.kv_events, config.insecure); !allowed)
    return allowed;
  if (!config.kv_events_replay.empty() && config.kv_events.empty())
    return fail(ec::invalid_argument, "--kv-events-replay is of use with --kv-events alone");
  if (auto format = parse_event_format(config.kv_events_format); !format)
    return fail(ec::invalid_argument, "--kv-events-format: " + format.error().detail);
  return check_events("--kv-events-replay", config.kv_events_replay, config.insecure);
}

hicache::prefetch_policy prefetch_policy_of(std::string_view name) {
  if (name == "best_effort")
    return prefetch_policy::best_effort;
  return name == "timeout" ? prefetch_policy::timeout : prefetch_policy::wait_complete;
}

/// Whether every rank's heads are whole groups, and all groups are alike.
bool groups_fit(uint64_t tp_lcm_size, uint32_t rank_heads, uint32_t kv_heads) {
  if (tp_lcm_size == 0 || tp_lcm_size % kv_heads == 0)
    return true;
  return kv_heads % tp_lcm_size == 0 && rank_heads % (kv_heads / tp_lcm_size) == 0;
}

write_policy write_policy_of(std::string_view name) {
  if (name == "write_back")
    return write_policy::write_back;
  return name == "write_through_selective" ? write_policy::write_through_selective
                                           : write_policy::write_through;
}

} // namespace

result<void> rank_config::finish(uint32_t ranks) {
  const auto preset = find_in(presets, model);
  if (preset == presets.end())
    return bad("--model", model, "a preset; expected " + names_of(presets));
  attention = attention.empty() ? std::string{preset->attention} : attention;
  const auto kind = parse_attention_kind(attention);
  if (!kind)
    return fail(ec::invalid_argument, "--attention: " + kind.error().detail);
  layers = layers != 0 ? layers : preset->layers;
  head_dim = head_dim != 0 ? head_dim : preset->head_dim;
  dtype = dtype.empty() ? std::string{preset->dtype} : dtype;
  if (*kind == attention_kind::mha) {
    kv_heads = kv_heads != 0 ? kv_heads : preset->kv_heads;
    v_head_dim = v_head_dim != 0 ? v_head_dim : head_dim;
  } else if (kv_heads > 1 || v_head_dim != 0) {
    return fail(ec::invalid_argument,
                "--kv-heads and --v-head-dim: attention " + attention
                  + " keeps one latent for all heads; expected --head-dim alone");
  } else {
    kv_heads = 1;
  }
  if (*kind == attention_kind::nsa)
    index_key_bytes = index_key_bytes != 0 ? index_key_bytes : default_index_key_bytes;
  else if (index_key_bytes != 0)
    return fail(ec::invalid_argument, "--index-key-bytes: attention " + attention
                                        + " has no index keys; expected it with nsa alone");
  if (find_in(dtypes, dtype) == dtypes.end())
    return bad("--dtype", dtype, "an element type; expected " + names_of(dtypes));
  if (!std::has_single_bit(page_size) || page_size > 4096)
    return bad("--page-size", std::to_string(page_size), "a power of two from 1 to 4096");
  const auto heads = split_heads(kv_heads, ranks);
  if (!heads)
    return bad("--kv-heads", std::to_string(kv_heads),
               absl::StrFormat("divisible by the number of ranks, %d, nor a divisor of it", ranks));
  for (const auto& checked :
       {offered("--hicache-write-policy", write_policy,
                {"write_through", "write_through_selective", "write_back"}, {}),
        offered("--hicache-storage-prefetch-policy", prefetch_policy,
                {"wait_complete", "best_effort", "timeout"}, {}),
        offered("--hicache-storage-backend", storage_backend,
                {"", "file", "memory", "cluster", "node"}, {})})
    if (!checked)
      return checked;
  if (auto policy = make_eviction_policy(eviction_policy); !policy)
    return fail(ec::invalid_argument, "--radix-eviction-policy: " + policy.error().detail);
  if (std::ranges::find(page_orders, page_order) == page_orders.end())
    return bad("--page-order", page_order, "known; expected newest_first or ascending");
  if (!(evict_below >= 0 && evict_below <= evict_until && evict_until <= 0.5))
    return bad("--evict-below, --evict-until",
               absl::StrFormat("%g and %g", evict_below, evict_until),
               "a pair of shares from 0 to 0.5, the first not above the second");
  if (!(pin_budget >= 0 && pin_budget <= 1))
    return bad("--pin-budget", absl::StrFormat("%g", pin_budget), "a share from 0 to 1");
  if (disable_radix_cache && !storage_backend.empty())
    return fail(ec::invalid_argument, "--disable-radix-cache: without the radix cache there is "
                                      "nothing to keep in --hicache-storage-backend; expected one "
                                      "or the other");
  if (auto layout = parse_host_layout(mem_layout); !layout)
    return fail(ec::invalid_argument, "--hicache-mem-layout: " + layout.error().detail);
  if (auto io = parse_io_backend(io_backend); !io)
    return fail(ec::invalid_argument, "--hicache-io-backend: " + io.error().detail);
  if (auto parsed = parse_device_choice(device); !parsed)
    return fail(ec::invalid_argument, "--device: " + parsed.error().detail);
  if (metrics.port != 0 && metrics.port + ranks - 1 > 65535)
    return bad(
      "--metrics-port", std::to_string(metrics.port),
      absl::StrFormat("low enough for %d ranks; expected at most %d", ranks, 65536 - ranks));
  auto extra = parse_storage_config(extra_config);
  if (!extra)
    return fail(ec::invalid_argument,
                "--hicache-storage-backend-extra-config: " + extra.error().detail);
  storage = *extra;
  // From now on a file's content, which the ranks compare: each of them may have another file of
  // that name.
  extra_config = *storage_config_json(extra_config);
  if (*kind == attention_kind::mha && !groups_fit(storage.tp_lcm_size, heads->heads, kv_heads))
    return bad("--hicache-storage-backend-extra-config: tp_lcm_size",
               std::to_string(storage.tp_lcm_size),
               absl::StrFormat("a multiple of the ranks, %d, that divides the %d KV heads or is "
                               "a multiple of them",
                               ranks, kv_heads));
  const auto l2 = pool_geometry{shape(ranks), *parse_host_layout(mem_layout), 1};
  if (storage.zero_copy && l2.object_runs(0, {0, heads_per_object()}).size() > 1)
    return fail(ec::invalid_argument,
                absl::StrFormat(
                  "--hicache-storage-backend-extra-config: zero_copy needs objects that are one "
                  "piece of memory, and --hicache-mem-layout %s scatters them; expected page_head, "
                  "or page_first or page_first_direct with all heads of a rank in one object "
                  "(tp_lcm_size)",
                  mem_layout));
  if (storage_backend == "file" && storage.path.empty())
    return fail(ec::invalid_argument,
                "--hicache-storage-backend file needs a folder; expected "
                "--hicache-storage-backend-extra-config '{\"path\": \"DIR\"}'");
  if (storage_backend == "cluster" && index.empty())
    return fail(ec::invalid_argument, "--hicache-storage-backend cluster needs --index HOST:PORT");
  if (storage_backend == "node" && node.empty())
    return fail(ec::invalid_argument, "--hicache-storage-backend node needs --node PATH|HOST:PORT, "
                                      "where hicache-node --socket or --listen serves");
  if (auto named = finish_identity(); !named)
    return named;
  if (auto checked = tls.check(); !checked)
    return checked;
  if (auto pages = parse_page_transport(page_transport); !pages)
    return fail(ec::invalid_argument, "--page-transport: " + pages.error().detail);
  if (auto allowed = check_listening("--listen-host", listen_host, tls, insecure); !allowed)
    return allowed;
  if (auto checked = check_events(*this); !checked)
    return checked;
  if (auto admin = check_admin(admin_listen, admin_token_file); !admin)
    return admin;
  const auto page_bytes = pool_geometry{shape(ranks), host_layout::page_first, 1}.page_bytes();
  if (page_bytes > limits::page_bytes)
    return bad("--page-size", std::to_string(page_size),
               absl::StrFormat("small enough: a page would take %s, at most %s are allowed",
                               format_bytes(page_bytes), format_bytes(limits::page_bytes)));
  const auto wanted = hicache_size > 0 ? hicache_size * 1e9 / static_cast<double>(page_bytes)
                                       : hicache_ratio * device_pages;
  if (!(wanted >= 1) || wanted >= static_cast<double>(limits::pool_pages))
    return bad(hicache_size > 0 ? "--hicache-size" : "--hicache-ratio",
               absl::StrFormat("%g", hicache_size > 0 ? hicache_size : hicache_ratio),
               absl::StrFormat("a size that gives 1 to %d host pages", limits::pool_pages - 1));
  return {};
}

head_split rank_config::split(uint32_t ranks) const {
  return *split_heads(kv_heads, ranks);
}

pool_shape rank_config::shape(uint32_t ranks) const {
  return {*parse_attention_kind(attention), layers,    split(ranks).heads, head_dim, v_head_dim,
          find_in(dtypes, dtype)->bytes,    page_size, index_key_bytes};
}

uint32_t rank_config::heads_per_object() const {
  if (*parse_attention_kind(attention) != attention_kind::mha || storage.tp_lcm_size == 0)
    return 1;
  return storage.tp_lcm_size >= kv_heads ? 1
                                         : kv_heads / static_cast<uint32_t>(storage.tp_lcm_size);
}

std::vector<head_group> rank_config::head_groups(uint32_t rank, uint32_t ranks) const {
  const auto geometry = pool_geometry{shape(ranks), *parse_host_layout(mem_layout), 1};
  return geometry.head_groups(split(ranks).part_of(rank), heads_per_object());
}

uint32_t rank_config::host_pages(uint32_t ranks) const {
  if (disable_radix_cache)
    return 0;
  const auto page_bytes = pool_geometry{shape(ranks), host_layout::page_first, 1}.page_bytes();
  return static_cast<uint32_t>(hicache_size > 0
                                 ? hicache_size * 1e9 / static_cast<double>(page_bytes)
                                 : hicache_ratio * device_pages);
}

tree_options rank_config::tree(uint32_t ranks) const {
  auto options = tree_options{};
  options.page_size = page_size;
  options.device_pages = device_pages;
  options.host_pages = host_pages(ranks);
  options.layers = layers;
  options.write = write_policy_of(write_policy);
  options.eviction = *make_eviction_policy(eviction_policy);
  options.order = page_order == "ascending" ? hicache::page_order::ascending
                                            : hicache::page_order::newest_first;
  options.load_back_threshold_tokens = load_back_threshold;
  options.bigram = bigram;
  options.share_prefixes = !disable_radix_cache;
  options.pin_budget_pages
    = static_cast<uint64_t>(pin_budget * std::max(options.device_pages, options.host_pages));
  options.pin_refresh = pin_refresh;
  options.prefetch.policy = prefetch_policy_of(prefetch_policy);
  options.prefetch.threshold_tokens = static_cast<uint32_t>(storage.prefetch_threshold);
  options.prefetch.timeout_base = storage.prefetch_timeout_base;
  options.prefetch.timeout_per_ki_token = storage.prefetch_timeout_per_ki_token;
  options.prefetch.timeout_max = storage.prefetch_timeout_max;
  options.storage_backend = storage_backend;
  options.storage_attached = !storage_backend.empty();
  options.storage_lends_host = storage_backend == "cluster" && storage.zero_copy;
  // A fetch longer than the reserve brings only as much as fits, and what is reserved caches
  // nothing meanwhile.
  if (options.storage_attached || !admin_listen.empty())
    options.prefetch_reserve_pages
      = static_cast<uint32_t>(storage.prefetch_share * options.host_pages);
  // The other half of L2 stays for what requests bring while L3 is slow.
  options.backup_limit_pages = options.host_pages / 2;
  options.device_room = {static_cast<uint32_t>(evict_below * options.device_pages),
                         static_cast<uint32_t>(evict_until * options.device_pages)};
  return options;
}

copy_options rank_config::copies() const {
  auto options = copy_options{};
  options.io = *parse_io_backend(io_backend);
  options.sms = io_sms;
  options.host_threads = io_threads;
  return options;
}

std::vector<std::pair<std::string, std::string>> rank_config::fields() const {
  return {
    {"page-size", std::to_string(page_size)},
    {"device-pages", std::to_string(device_pages)},
    {"hicache-ratio", absl::StrFormat("%g", hicache_ratio)},
    {"hicache-size", absl::StrFormat("%g", hicache_size)},
    {"hicache-write-policy", write_policy},
    {"hicache-io-backend", io_backend},
    {"hicache-io-sms", std::to_string(io_sms)},
    {"hicache-io-threads", std::to_string(io_threads)},
    {"hicache-mem-layout", mem_layout},
    {"radix-eviction-policy", eviction_policy},
    {"page-order", page_order},
    {"load-back-threshold", std::to_string(load_back_threshold)},
    {"bigram", bigram ? "true" : "false"},
    {"disable-radix-cache", disable_radix_cache ? "true" : "false"},
    {"pin-budget", absl::StrFormat("%g", pin_budget)},
    {"pin-refresh", pin_refresh ? "true" : "false"},
    {"evict-below", absl::StrFormat("%g", evict_below)},
    {"evict-until", absl::StrFormat("%g", evict_until)},
    {"hicache-storage-backend", storage_backend},
    {"hicache-storage-prefetch-policy", prefetch_policy},
    {"hicache-storage-backend-extra-config", extra_config},
    {"index", index},
    {"segment-size", std::to_string(segment_bytes)},
    // Each rank may name another one.
    {"device", device.substr(0, device.find(':'))},
    {"model", model},
    {"attention", attention},
    {"layers", std::to_string(layers)},
    {"kv-heads", std::to_string(kv_heads)},
    {"head-dim", std::to_string(head_dim)},
    {"v-head-dim", std::to_string(v_head_dim)},
    {"index-key-bytes", std::to_string(index_key_bytes)},
    {"dtype", dtype},
    {"namespace", name_space},
    {"model-id", model_id},
    {"kv-quantisation", kv_quantisation},
    {"kv-scales", kv_scales},
    {"rope", rope},
    {"first-layer", std::to_string(first_layer)},
    {"numerics", numerics},
    {"kv-events", kv_events},
    {"kv-events-topic", kv_events_topic},
    {"kv-events-replay", kv_events_replay},
    {"kv-events-format", kv_events_format},
    {"admin-listen", admin_listen},
    {"metrics-port", std::to_string(metrics.port)},
  };
}

void add_bytes_flag(CLI::App& app, const std::string& name, uint64_t& value,
                    const std::string& help) {
  const auto read = [name, &value](const std::string& text) {
    const auto bytes = parse_bytes(text);
    if (!bytes)
      throw CLI::ValidationError(name, bytes.error().detail);
    value = *bytes;
  };
  app.add_option_function<std::string>(name, read, help)
    ->type_name("SIZE")
    ->default_str(format_bytes(value));
}

void add_duration_flag(CLI::App& app, const std::string& name, duration& value,
                       const std::string& help) {
  const auto read = [name, &value](const std::string& text) {
    const auto time = parse_duration(text);
    if (!time)
      throw CLI::ValidationError(name, time.error().detail);
    value = *time;
  };
  app.add_option_function<std::string>(name, read, help)
    ->type_name("TIME")
    ->default_str(absl::StrFormat("%gs", std::chrono::duration<double>(value).count()));
}

void add_rank_flags(CLI::App& app, rank_config& config) {
  app.set_config("--config", "", "TOML file with the same names as the flags; flags win")
    ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  const auto add = [&app](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->capture_default_str();
  };
  add("--page-size", config.page_size, "tokens per page, a power of two")
    ->check(CLI::PositiveNumber);
  add("--device-pages", config.device_pages, "pages of the device pool (L1) on each rank")
    ->check(CLI::Range(1, 1 << 30));
  add("--hicache-ratio", config.hicache_ratio, "host pool (L2) as a multiple of the device pool")
    ->check(CLI::PositiveNumber);
  add(
    "--hicache-size", config.hicache_size,
    "host pool (L2) of each rank in GB (1e9 bytes); overrides the ratio; 0 leaves it to the ratio")
    ->check(CLI::NonNegativeNumber);
  add(
    "--hicache-write-policy", config.write_policy,
    "when pages go to the next tier: write_through (at the first insert), write_through_selective "
    "(at the second) or write_back (when L1 needs the room)");
  add(
    "--hicache-io-backend", config.io_backend,
    "how pages are copied between L1 and L2: direct (the GPU's copy hardware, or memcpy) or kernel "
    "(a few SMs, or threads, gather and scatter)");
  add("--hicache-io-sms", config.io_sms,
      "SMs that the copy kernels may occupy, each direction for itself")
    ->check(CLI::Range(1, 1024));
  add("--hicache-io-threads", config.io_threads,
      "threads that copy on the host device, each direction for itself")
    ->check(CLI::Range(1, 256));
  add("--hicache-mem-layout", config.mem_layout,
      "layout of L2: layer_first, page_first, page_first_direct or page_head");
  add("--radix-eviction-policy", config.eviction_policy,
      "which page goes first: lru, lfu, fifo, mru, filo, priority or slru");
  add("--page-order", config.page_order,
      "in which order free pages are handed out: newest_first, or ascending, so that requests get "
      "runs of neighbouring pages");
  add("--load-back-threshold", config.load_back_threshold,
      "tokens in L2 that are computed rather than loaded, if there are fewer")
    ->check(CLI::NonNegativeNumber);
  app.add_flag("--bigram", config.bigram,
               "pages are of pairs of neighbouring tokens, for speculative decoding with EAGLE");
  app.add_flag("--disable-radix-cache", config.disable_radix_cache,
               "share nothing between requests: no radix tree, no L2, no L3");
  add("--pin-budget", config.pin_budget,
      "share of the larger of L1 and L2 that the pins of one tenant may keep, 0 to 1");
  app.add_flag("--pin-refresh", config.pin_refresh,
               "a request that uses all that is pinned begins the pin's time anew");
  add("--evict-below", config.evict_below,
      "share of L1 below which free pages are made ahead of requests; 0 never");
  add("--evict-until", config.evict_until, "share of free pages at which that stops");
  add("--hicache-storage-backend", config.storage_backend,
      "L3: file, memory, cluster or node; none if absent");
  add("--hicache-storage-prefetch-policy", config.prefetch_policy,
      "when a prefetch from L3 ends: best_effort (when the request could run), wait_complete or "
      "timeout (when all has arrived, but after prefetch_timeout_base + "
      "prefetch_timeout_per_ki_token * tokens / 1024 at the latest)");
  add("--hicache-storage-backend-extra-config", config.extra_config,
      "JSON, or @FILE in JSON, TOML or YAML: prefetch_threshold (tokens), prefetch_timeout_base, "
      "prefetch_timeout_per_ki_token, prefetch_timeout_max (seconds, or times such as 250ms), "
      "prefetch_share (of L2), path, max_bytes, threads, "
      "tp_lcm_size, force_remote_reads, replicas, host, eviction, high_watermark, "
      "low_watermark, pinned_share, tenant_share, zero_copy")
    ->type_name("JSON|@FILE");
  add("--index", config.index, "the cluster's index")->type_name(index_place_type);
  add("--node", config.node, "where the node listens (backend node)")->type_name("PATH|HOST:PORT");
  add_bytes_flag(app, "--segment-size", config.segment_bytes,
                 "memory that each rank lends to L3 (backend cluster)");
  add("--device", config.device, "where L1 lives: auto, cuda, cuda:N or host");
  add("--model", config.model, "shape of the KV: " + names_of(presets));
  add("--attention", config.attention,
      "kind of attention: mha (also MQA and GQA), mla or nsa; empty takes the model's");
  add("--layers", config.layers, "layers; 0 takes the model's")->check(CLI::NonNegativeNumber);
  add("--kv-heads", config.kv_heads,
      "mha: KV heads of the whole model, a multiple or a divisor of the ranks; 0 takes the model's")
    ->check(CLI::NonNegativeNumber);
  add("--head-dim", config.head_dim,
      "elements per head of K, or of the latent (mla, nsa); 0 takes the model's")
    ->check(CLI::NonNegativeNumber);
  add("--v-head-dim", config.v_head_dim, "mha: elements per head of V; 0 takes --head-dim")
    ->check(CLI::NonNegativeNumber);
  add("--index-key-bytes", config.index_key_bytes,
      "nsa: bytes of a token's index key and its scale in one layer; 0 takes 132")
    ->check(CLI::NonNegativeNumber);
  add("--dtype", config.dtype, "element type: " + names_of(dtypes) + "; empty takes the model's");
  add("--namespace", config.name_space, "pages of different namespaces are never exchanged");
  add_identity_flags(app, config);
  add_duration_flag(app, "--step-timeout", config.step_timeout,
                    "how long a step waits for the slowest rank before it fails");
  add_duration_flag(app, "--hicache-storage-timeout", config.storage_timeout,
                    "how long a call of L3 may take; what has not arrived then is computed");
  add_duration_flag(app, "--shutdown-grace", config.shutdown_grace,
                    "how long a rank that ends waits for calls of L3 that have not returned");
  add("--listen-host", config.listen_host,
      "address on which peers on other machines read this rank's segment");
  add("--page-transport", config.page_transport,
      "what pages travel by between machines: tcp (with TLS, encrypted), ucx (RDMA), or auto: ucx "
      "where there are RDMA devices");
  add_tls_flags(app, config.tls);
  app.add_flag("--insecure", config.insecure,
               "let --listen-host, --kv-events and --rendezvous be ones that other machines reach, "
               "without TLS");
  add("--kv-events", config.kv_events,
      "where rank 0 publishes for routers which pages L1 and L2 have, over ZeroMQ: tcp://*:5557 "
      "or ipc://FILE to be subscribed to, tcp://HOST:PORT to connect to a router; nowhere if "
      "absent")
    ->type_name("ENDPOINT");
  add("--kv-events-topic", config.kv_events_topic, "topic of these events")->type_name("TOPIC");
  add("--kv-events-replay", config.kv_events_replay,
      "where rank 0 is asked for events that a subscriber missed; nowhere if absent")
    ->type_name("ENDPOINT");
  add("--kv-events-format", config.kv_events_format, "whose events these are: sglang or vllm");
  add("--record-ops", config.record_ops,
      "write every operation and step to an op log, for hicachectl oplog replay and diff; with "
      "several ranks each writes FILE.RANK")
    ->type_name("FILE");
  add("--admin-listen", config.admin_listen,
      "where rank 0 answers hicachectl storage; port 0 picks a free one, and TCP needs a token; "
      "nowhere if absent")
    ->type_name("HOST:PORT|unix:PATH");
  add("--admin-token-file", config.admin_token_file,
      "file with the token that operators need; only its owner may read it")
    ->type_name("FILE");
  add_metrics_flags(app, config.metrics,
                    "port at which Prometheus finds /metrics of rank 0; rank r has this port plus "
                    "r; 0 is nowhere");
  add("--log-level", config.log_level, "trace, debug, info, warn, error or critical")
    ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "critical"}));
}

} // namespace hicache
