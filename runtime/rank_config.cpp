#include "runtime/rank_config.hpp"

#include "backends/serde/object_codec.hpp"
#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "runtime/admin_server.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/rank_settings.hpp"
#include "runtime/setting_flags.hpp"
#include "stores/storage_config.hpp"
#include "stores/storage_settings.hpp"
#include "transport/page_channel.hpp"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <array>
#include <bit>

namespace hicache {

namespace {

/// KV shapes of well-known models; `tiny` is small enough to cache millions of tokens on a laptop.
struct model_preset {
  std::string_view name;
  attention_kind attention;
  uint32_t layers;
  uint32_t kv_heads;
  /// For mla and nsa that of the latent: kv_lora_rank plus qk_rope_head_dim in model cards.
  uint32_t head_dim;
  element_type dtype;
};

constexpr std::array<model_preset, 6> presets = {{
  {"tiny", attention_kind::mha, 2, 4, 8, element_type::bf16},
  {"llama-3.1-8b", attention_kind::mha, 32, 8, 128, element_type::bf16},
  {"llama-3.1-70b", attention_kind::mha, 80, 8, 128, element_type::bf16},
  {"qwen3-32b", attention_kind::mha, 64, 8, 128, element_type::bf16},
  {"deepseek-v3", attention_kind::mla, 61, 1, 512 + 64, element_type::bf16},
  {"deepseek-v3.2", attention_kind::nsa, 61, 1, 512 + 64, element_type::bf16},
}};

/// 128 elements in fp8 and their scale in fp32 (DeepSeek-V3.2).
constexpr uint32_t default_index_key_bytes = 128 + 4;

uint32_t bytes_of(element_type type) {
  return type == element_type::fp8 ? 1 : type == element_type::fp32 ? 4 : 2;
}

tl::unexpected<error> bad(std::string_view flag, std::string_view value,
                          std::string_view expected) {
  return fail(ec::invalid_argument, absl::StrFormat("%s: '%s' is not %s", flag, value, expected));
}

result<void> check_admin(const std::string& listen, const std::string& token_file) {
  if (!listen.empty())
    return check_admin_options({listen, token_file});
  if (!token_file.empty())
    return fail(ec::invalid_argument, "--admin-token-file is of use with --admin-listen alone");
  return {};
}

/// Events are sent unencrypted, so other hosts require --insecure.
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
  HICACHE_TRY(check_events("--kv-events", config.kv_events, config.insecure));
  if (!config.kv_events_replay.empty() && config.kv_events.empty())
    return fail(ec::invalid_argument, "--kv-events-replay is of use with --kv-events alone");
  return check_events("--kv-events-replay", config.kv_events_replay, config.insecure);
}

/// True if each rank's heads divide into whole groups of equal size.
bool groups_fit(uint64_t tp_lcm_size, uint32_t rank_heads, uint32_t kv_heads) {
  return tp_lcm_size == 0 || tp_lcm_size % kv_heads == 0
         || (kv_heads % tp_lcm_size == 0 && rank_heads % (kv_heads / tp_lcm_size) == 0);
}

result<void> finish_shape(rank_config& config, uint32_t ranks) {
  const auto preset = std::ranges::find(presets, config.model, &model_preset::name);
  if (preset == presets.end()) {
    const auto add_name = [](std::string* to, const model_preset& x) { to->append(x.name); };
    return bad("--model", config.model,
               "a preset; expected " + absl::StrJoin(presets, ", ", add_name));
  }
  const auto kind = config.attention.value_or(preset->attention);
  config.attention = kind;
  config.layers = config.layers != 0 ? config.layers : preset->layers;
  config.head_dim = config.head_dim != 0 ? config.head_dim : preset->head_dim;
  config.dtype = config.dtype.value_or(preset->dtype);
  if (kind == attention_kind::mha) {
    config.kv_heads = config.kv_heads != 0 ? config.kv_heads : preset->kv_heads;
    config.v_head_dim = config.v_head_dim != 0 ? config.v_head_dim : config.head_dim;
  } else if (config.kv_heads > 1 || config.v_head_dim != 0) {
    return fail(ec::invalid_argument,
                std::string{"--kv-heads and --v-head-dim: attention "} + to_string(kind)
                  + " keeps one latent for all heads; expected --head-dim alone");
  } else {
    config.kv_heads = 1;
  }
  if (kind == attention_kind::nsa)
    config.index_key_bytes
      = config.index_key_bytes != 0 ? config.index_key_bytes : default_index_key_bytes;
  else if (config.index_key_bytes != 0)
    return fail(ec::invalid_argument, std::string{"--index-key-bytes: attention "} + to_string(kind)
                                        + " has no index keys; expected it with nsa alone");
  if (!std::has_single_bit(config.page_size) || config.page_size > 4096)
    return bad("--page-size", std::to_string(config.page_size), "a power of two from 1 to 4096");
  if (!split_heads(config.kv_heads, ranks))
    return bad("--kv-heads", std::to_string(config.kv_heads),
               absl::StrFormat("divisible by the number of ranks, %d, nor a divisor of it", ranks));
  return {};
}

result<void> check_choices(const rank_config& config, uint32_t ranks) {
  if (!config.storage_backend.empty() && config.storage_backend != "tiered"
      && std::ranges::find(store_names, config.storage_backend) == store_names.end())
    return bad("--hicache-storage-backend", config.storage_backend,
               absl::StrFormat("a store; expected %s, or tiered", any_store));
  HICACHE_TRY(about_input("--radix-eviction-policy", make_eviction_policy(config.eviction_policy)));
  if (!(config.evict_below >= 0 && config.evict_below <= config.evict_until
        && config.evict_until <= 0.5))
    return bad("--evict-below, --evict-until",
               absl::StrFormat("%g and %g", config.evict_below, config.evict_until),
               "a pair of shares from 0 to 0.5, the first not above the second");
  if (!(config.pin_budget >= 0 && config.pin_budget <= 1))
    return bad("--pin-budget", absl::StrFormat("%g", config.pin_budget), "a share from 0 to 1");
  if (config.disable_radix_cache && !config.storage_backend.empty())
    return fail(ec::invalid_argument, "--disable-radix-cache: without the radix cache there is "
                                      "nothing to keep in --hicache-storage-backend; expected one "
                                      "or the other");
  if (config.metrics.port != 0 && config.metrics.port + ranks - 1 > 65535)
    return bad(
      "--metrics-port", std::to_string(config.metrics.port),
      absl::StrFormat("low enough for %d ranks; expected at most %d", ranks, 65536 - ranks));
  return {};
}

/// A store that needs what is not given.
result<void> check_store(const rank_config& config, std::string_view backend,
                         const storage_config& storage) {
  if (*config.dtype == element_type::fp8
      && serde::parse_codec_chain(storage.codecs)->quantisation == serde::quantisation::fp8_e4m3)
    return fail(ec::invalid_argument,
                "--hicache-storage-backend-extra-config: codec fp8 has nothing to convert, because "
                "--dtype is fp8; expected codecs without fp8");
  if (const auto missing = missing_setting_of(backend, storage))
    return fail(ec::invalid_argument,
                absl::StrFormat("--hicache-storage-backend %s needs %s; expected "
                                "--hicache-storage-backend-extra-config %s",
                                backend, missing->what, missing->example));
  if (backend == "cluster" && config.index.empty())
    return fail(ec::invalid_argument, "--hicache-storage-backend cluster needs --index HOST:PORT");
  if (backend == "node" && config.node.empty())
    return fail(ec::invalid_argument, "--hicache-storage-backend node needs --node PATH|HOST:PORT, "
                                      "where hicache-node --socket or --listen serves");
  return {};
}

result<void> check_stores(const rank_config& config) {
  const auto& tiers = config.storage.tiers;
  if ((config.storage_backend == "tiered") == tiers.empty())
    return fail(ec::invalid_argument,
                "--hicache-storage-backend tiered and key 'tiers' of "
                "--hicache-storage-backend-extra-config belong together; expected both or neither");
  if (tiers.empty())
    return check_store(config, config.storage_backend, config.storage);
  auto clusters = 0;
  for (auto number = 1; const auto& tier : tiers) {
    const auto& backend = tier.tier.backend;
    const auto where = absl::StrFormat("--hicache-storage-backend-extra-config: tier %d", number++);
    if (std::ranges::find(store_names, backend) == store_names.end())
      return bad(where, backend, absl::StrFormat("a store; expected %s", any_store));
    HICACHE_TRY(about(where, check_store(config, backend, tier)));
    clusters += backend == "cluster" ? 1 : 0;
  }
  if (clusters > 1)
    return fail(ec::invalid_argument, "--hicache-storage-backend-extra-config: several tiers are "
                                      "cluster; expected one at most");
  return {};
}

result<void> finish_storage(rank_config& config, uint32_t ranks) {
  config.storage
    = HICACHE_TRY(about_input("--hicache-storage-backend-extra-config",
                              parse_storage_config(config.extra_config, config.storage_backend)));
  // Replaced by the file's content for comparison, because each rank may have another such file.
  config.extra_config = *storage_config_json(config.extra_config);
  if (*config.attention == attention_kind::mha
      && !groups_fit(config.storage.tp_lcm_size, config.split(ranks).heads, config.kv_heads))
    return bad("--hicache-storage-backend-extra-config: tp_lcm_size",
               std::to_string(config.storage.tp_lcm_size),
               absl::StrFormat("a multiple of the ranks, %d, that divides the %d KV heads or is "
                               "a multiple of them",
                               ranks, config.kv_heads));
  const auto l2 = pool_geometry{config.shape(ranks), config.mem_layout, 1};
  if (config.storage.zero_copy && l2.object_runs(0, {0, config.heads_per_object()}).size() > 1)
    return fail(ec::invalid_argument,
                absl::StrFormat(
                  "--hicache-storage-backend-extra-config: zero_copy needs objects that are one "
                  "piece of memory, and --hicache-mem-layout %s scatters them; expected page_head, "
                  "or page_first or page_first_direct with all heads of a rank in one object "
                  "(tp_lcm_size)",
                  to_string(config.mem_layout)));
  HICACHE_TRY(check_stores(config));
  return finish_identity(config);
}

result<void> check_network(const rank_config& config) {
  HICACHE_TRY(config.tls.check());
  HICACHE_TRY(
    about_input("--page-transport", parse_page_transport(to_string(config.page_transport))));
  HICACHE_TRY(check_listening("--listen-host", config.listen_host, config.tls, config.insecure));
  HICACHE_TRY(check_events(config));
  return check_admin(config.admin_listen, config.admin_token_file);
}

result<void> check_sizes(const rank_config& config, uint32_t ranks) {
  const auto page_bytes
    = pool_geometry{config.shape(ranks), host_layout::page_first, 1}.page_bytes();
  if (page_bytes > limits::page_bytes)
    return bad("--page-size", std::to_string(config.page_size),
               absl::StrFormat("small enough: a page would take %s, at most %s are allowed",
                               format_bytes(page_bytes), format_bytes(limits::page_bytes)));
  const auto wanted = config.hicache_size > 0
                        ? config.hicache_size * 1e9 / static_cast<double>(page_bytes)
                        : config.hicache_ratio * config.l1_pages;
  if (!(wanted >= 1) || wanted >= static_cast<double>(limits::pool_pages))
    return bad(
      config.hicache_size > 0 ? "--hicache-size" : "--hicache-ratio",
      absl::StrFormat("%g", config.hicache_size > 0 ? config.hicache_size : config.hicache_ratio),
      absl::StrFormat("a size that gives 1 to %d host pages", limits::pool_pages - 1));
  return {};
}

/// For settings that came neither from flags nor from a file.
result<void> check_ranges(rank_config& config) {
  for (const auto& each : rank_settings())
    if (const auto wrong = range_error(each.at(config), each.range))
      return fail(ec::invalid_argument, "--" + std::string{each.name} + ": "
                                          + text_of(each.at(config)) + " is " + *wrong);
  return {};
}

} // namespace

result<void> rank_config::finish(uint32_t ranks) {
  HICACHE_TRY(finish_shape(*this, ranks));
  HICACHE_TRY(check_choices(*this, ranks));
  HICACHE_TRY(finish_storage(*this, ranks));
  HICACHE_TRY(check_network(*this));
  HICACHE_TRY(check_sizes(*this, ranks));
  return check_ranges(*this);
}

head_split rank_config::split(uint32_t ranks) const {
  return *split_heads(kv_heads, ranks);
}

pool_shape rank_config::shape(uint32_t ranks) const {
  return {*attention, layers,           split(ranks).heads, head_dim,
          v_head_dim, bytes_of(*dtype), page_size,          index_key_bytes};
}

uint32_t rank_config::heads_per_object() const {
  if (*attention != attention_kind::mha || storage.tp_lcm_size == 0)
    return 1;
  return storage.tp_lcm_size >= kv_heads ? 1
                                         : kv_heads / static_cast<uint32_t>(storage.tp_lcm_size);
}

std::vector<head_group> rank_config::head_groups(uint32_t rank, uint32_t ranks) const {
  const auto geometry = pool_geometry{shape(ranks), mem_layout, 1};
  return geometry.head_groups(split(ranks).part_of(rank), heads_per_object());
}

uint32_t rank_config::l2_pages(uint32_t ranks) const {
  if (disable_radix_cache)
    return 0;
  const auto page_bytes = pool_geometry{shape(ranks), host_layout::page_first, 1}.page_bytes();
  return static_cast<uint32_t>(hicache_size > 0
                                 ? hicache_size * 1e9 / static_cast<double>(page_bytes)
                                 : hicache_ratio * l1_pages);
}

tree_options tree_options_of(const rank_config& config, uint32_t ranks) {
  auto options = tree_options{};
  options.page_size = config.page_size;
  options.l1_pages = config.l1_pages;
  options.l2_pages = config.l2_pages(ranks);
  options.layers = config.layers;
  options.write = config.write_policy;
  options.eviction = *make_eviction_policy(config.eviction_policy);
  options.order = config.page_order;
  options.load_back_threshold_tokens = config.load_back_threshold;
  options.bigram = config.bigram;
  options.share_prefixes = !config.disable_radix_cache;
  options.pin_budget_pages
    = static_cast<uint64_t>(config.pin_budget * std::max(options.l1_pages, options.l2_pages));
  options.pin_refresh = config.pin_refresh;
  options.prefetch.policy = config.prefetch_policy;
  options.prefetch.threshold_tokens = static_cast<uint32_t>(config.storage.prefetch_threshold);
  options.prefetch.timeout_base = config.storage.prefetch_timeout_base;
  options.prefetch.timeout_per_ki_token = config.storage.prefetch_timeout_per_ki_token;
  options.prefetch.timeout_max = config.storage.prefetch_timeout_max;
  options.storage_backend = config.storage_backend;
  options.storage_attached = !config.storage_backend.empty();
  options.storage_exports_l2 = config.storage_backend == "cluster" && config.storage.zero_copy;
  // A longer fetch brings only what fits, but reserved pages cache nothing in the meantime.
  if (options.storage_attached || !config.admin_listen.empty())
    options.prefetch_reserve_pages
      = static_cast<uint32_t>(config.storage.prefetch_share * options.l2_pages);
  // The other half of L2 remains available to requests while L3 is slow.
  options.backup_limit_pages = options.l2_pages / 2;
  options.l1_room = {static_cast<uint32_t>(config.evict_below * options.l1_pages),
                     static_cast<uint32_t>(config.evict_until * options.l1_pages)};
  return options;
}

std::optional<std::string> scattered_objects(const rank_config& config, uint32_t ranks) {
  constexpr auto small_piece = uint64_t{4096};
  const auto l2 = pool_geometry{config.shape(ranks), config.mem_layout, 1};
  const auto pieces = l2.object_runs(0, {0, config.heads_per_object()});
  if (pieces.size() == 1 || pieces.front().length >= small_piece)
    return std::nullopt;
  return absl::StrFormat("--hicache-mem-layout %s keeps each object of L3 in %d pieces of %d "
                         "bytes, which L3 reads and writes about a third slower than whole ones; "
                         "page_head keeps it in one piece",
                         to_string(config.mem_layout), pieces.size(), pieces.front().length);
}

copy_options copy_options_of(const rank_config& config) {
  return {.io = config.io_backend, .sms = config.io_sms, .host_threads = config.io_threads};
}

} // namespace hicache
