#include "runtime/rank_config.hpp"

#include "base/limits.hpp"
#include "base/units.hpp"
#include "cache/prefix/event_message.hpp"
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
  using part = result<void> (rank_config::*)(uint32_t);
  for (const auto each : {part{&rank_config::finish_shape}, part{&rank_config::check_choices},
                          part{&rank_config::finish_storage}, part{&rank_config::check_network},
                          part{&rank_config::check_sizes}})
    if (auto finished = (this->*each)(ranks); !finished)
      return finished;
  return {};
}

result<void> rank_config::finish_shape(uint32_t ranks) {
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
  if (!split_heads(kv_heads, ranks))
    return bad("--kv-heads", std::to_string(kv_heads),
               absl::StrFormat("divisible by the number of ranks, %d, nor a divisor of it", ranks));
  return {};
}

result<void> rank_config::check_choices(uint32_t ranks) {
  for (const auto& checked :
       {offered("--hicache-write-policy", write_policy,
                {"write_through", "write_through_selective", "write_back"}, {}),
        offered("--hicache-storage-prefetch-policy", prefetch_policy,
                {"wait_complete", "best_effort", "timeout"}, {}),
        offered("--log-level", log_level, {"trace", "debug", "info", "warn", "error", "critical"},
                {}),
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
  return {};
}

result<void> rank_config::finish_storage(uint32_t ranks) {
  auto extra = parse_storage_config(extra_config);
  if (!extra)
    return fail(ec::invalid_argument,
                "--hicache-storage-backend-extra-config: " + extra.error().detail);
  storage = *extra;
  // From now on a file's content, which the ranks compare: each of them may have another file of
  // that name.
  extra_config = *storage_config_json(extra_config);
  if (*parse_attention_kind(attention) == attention_kind::mha
      && !groups_fit(storage.tp_lcm_size, split(ranks).heads, kv_heads))
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
  return finish_identity();
}

result<void> rank_config::check_network(uint32_t) {
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
  return {};
}

result<void> rank_config::check_sizes(uint32_t ranks) {
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

} // namespace hicache
