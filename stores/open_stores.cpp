#include "stores/open_stores.hpp"

#include "backends/disk/disk_backend.hpp"
#include "backends/external/external_backend.hpp"
#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/redis/redis_backend.hpp"
#include "backends/s3/s3_backend.hpp"
#include "backends/serde/serde_backend.hpp"
#include "backends/storage_queue.hpp"
#include "base/about.hpp"
#include "base/try.hpp"
#include "stores/storage_config.hpp"

#include <absl/strings/str_replace.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace hicache {

namespace {

serde_options codecs_of(const storage_config& storage, const store_owner& owner) {
  auto options = serde_options{};
  options.codec.chain = serde::parse_codec_chain(storage.codecs).value();
  options.codec.zstd_level = static_cast<int>(storage.zstd_level);
  options.codec.objects = owner.objects;
  options.codec.fingerprint = owner.fingerprint.value_or(0);
  options.key_file = storage.key_file;
  options.key_command = storage.key_command;
  options.codec_threads = storage.codec_threads;
  options.codec_bytes = storage.codec_bytes;
  return options;
}

result<redis_options> redis_of(const storage_config& storage, const store_owner& owner) {
  const auto& wanted = storage.redis;
  auto options = redis_options{};
  options.servers.servers
    = HICACHE_TRY(about_input("key 'servers'", rpc::parse_endpoints(wanted.servers)));
  options.servers.is_cluster = wanted.is_cluster;
  options.servers.access
    = {wanted.user,
       wanted.password_file,
       wanted.password_variable,
       {wanted.uses_tls, storage.tls_ca, wanted.tls_cert, wanted.tls_key, wanted.tls_name}};
  if (!storage.key_prefix.empty())
    options.key_prefix = storage.key_prefix;
  else if (owner.has_namespaces)
    options.key_prefix = "hicache-node:"; // Apart from the objects of ranks, which are others.
  options.chunk_bytes = wanted.chunk_bytes;
  options.ttl = std::chrono::ceil<std::chrono::milliseconds>(wanted.ttl);
  options.max_bytes = storage.max_bytes / owner.ranks;
  options.fingerprint = owner.fingerprint;
  options.keeps_broken = owner.keeps_broken;
  return options;
}

s3_options s3_of(const storage_config& storage, const store_owner& owner) {
  const auto& wanted = storage.s3;
  auto options = s3_options{};
  options.bucket = {.endpoint = wanted.endpoint,
                    .bucket = wanted.bucket,
                    .region = wanted.region,
                    .is_virtual_host = wanted.is_virtual_host,
                    .credentials = {wanted.credentials_file, wanted.profile},
                    .tls_ca = storage.tls_ca,
                    .connections = wanted.connections};
  if (!storage.key_prefix.empty())
    options.key_prefix = storage.key_prefix;
  options.part_bytes = wanted.part_bytes;
  options.max_bytes = storage.max_bytes / owner.ranks;
  options.fingerprint = owner.fingerprint;
  options.keeps_broken = owner.keeps_broken;
  return options;
}

/// A word of a shell command that means itself.
std::string shell_word(std::string_view text) {
  return "'" + absl::StrReplaceAll({text.data(), text.size()}, {{"'", "'\\''"}}) + "'";
}

/// Stores of others whose clients are in the Python package.
constexpr auto python_stores = std::to_array<std::pair<std::string_view, std::string_view>>(
  {{"mooncake", "hicache.mooncake_store:MooncakeStore"},
   {"nixl", "hicache.nixl_store:NixlStore"},
   {"lmcache", "hicache.lmcache_store:LmcacheStore"}});

/// The shell command that starts a store's process; empty if it runs already.
std::string command_of(std::string_view name, const external_config& wanted) {
  if (name == "external")
    return wanted.command;
  const auto* const known
    = std::ranges::find(python_stores, name, [](const auto& x) { return x.first; });
  const auto store = known != python_stores.end() ? std::string{known->second}
                                                  : wanted.module_path + ":" + wanted.class_name;
  return "exec " + shell_word(wanted.python) + " -m hicache store-host --fd 3 " + shell_word(store);
}

external_options external_of(std::string_view name, const storage_config& storage,
                             const store_owner& owner) {
  const auto& wanted = storage.external;
  auto options = nlohmann::json::parse(wanted.options);
  if (!storage.path.empty())
    options["path"] = storage.path;
  return {.name = std::string{name},
          .socket = wanted.socket,
          .command = command_of(name, wanted),
          .options = options.dump(),
          .start_time = std::chrono::ceil<std::chrono::milliseconds>(wanted.start_time),
          .window_bytes = wanted.window_bytes,
          .max_bytes = storage.max_bytes / owner.ranks,
          .fingerprint = owner.fingerprint,
          .keeps_broken = owner.keeps_broken};
}

/// The folder of a store that belongs to one process.
std::string folder_of_rank(const storage_config& storage, const store_owner& owner) {
  return storage.path + "/rank-" + std::to_string(owner.rank);
}

/// Opens one store as it is, without threads and codecs.
result<std::unique_ptr<blocking_store>> open_blocking(std::string_view name,
                                                      const storage_config& storage,
                                                      const store_owner& owner,
                                                      const clock_source& clock) {
  if (name == "memory")
    return make_memory_backend(storage.max_bytes / owner.ranks, clock);
  if (name == "file")
    return make_file_backend(
      {{storage.path, storage.max_bytes, owner.keeps_broken}, owner.fingerprint}, clock);
  if (name == "disk")
    return make_disk_backend(folder_of_rank(storage, owner), storage.max_bytes / owner.ranks,
                             owner.fingerprint.value_or(0), clock);
  if (name == "hf3fs")
    return make_hf3fs_backend(folder_of_rank(storage, owner), storage.max_bytes / owner.ranks,
                              owner.fingerprint.value_or(0),
                              {storage.hf3fs.library, storage.hf3fs.mount_point}, clock);
  if (name == "redis") {
    auto options = HICACHE_TRY(redis_of(storage, owner));
    return make_redis_backend(std::move(options), clock);
  }
  if (name == "s3")
    return make_s3_backend(s3_of(storage, owner), clock);
  if (is_external_store(name))
    return make_external_backend(external_of(name, storage, owner), clock);
  return owner.open_other(name, storage);
}

/// Opens one store, with its threads and codecs.
result<std::unique_ptr<storage_backend>> open_one(std::string_view name,
                                                  const storage_config& storage,
                                                  const store_owner& owner,
                                                  const clock_source& clock) {
  auto store = HICACHE_TRY(open_blocking(name, storage, owner, clock));
  auto coded = HICACHE_TRY(about(
    "codecs of L3",
    make_serde_backend(codecs_of(storage, owner),
                       std::make_unique<storage_queue>(std::move(store), storage.threads), clock)));
  if (owner.has_namespaces && !coded->capabilities().keeps_namespaces)
    return fail(ec::invalid_argument, "it cannot list objects with the namespace of each; expected "
                                      "a store that can: disk, hf3fs or redis, without codecs");
  return coded;
}

/// What a tier takes.
tier_rules rules_of(const tier_config& tier) {
  return {parse_tier_writes(tier.write).value(), tier.promote, tier.write_bytes_per_second,
          tier.write_bytes_per_day};
}

} // namespace

result<store_tier> open_store_tier(const storage_config& storage, size_t at,
                                   const store_owner& owner, const clock_source& clock) {
  const auto& wanted = storage.tiers[at];
  auto store
    = HICACHE_TRY(about("tier " + std::to_string(at + 1) + " (" + wanted.tier.backend + ")",
                        open_one(wanted.tier.backend, wanted, owner, clock)));
  return store_tier{std::move(store), rules_of(wanted.tier)};
}

result<std::unique_ptr<tiered_store>>
open_tiers(const storage_config& storage, const store_owner& owner, const clock_source& clock) {
  auto options = tiered_options{};
  options.looks_up_in_parallel = storage.parallel_lookup;
  options.breaker = storage.breaker;
  options.copy_bytes = storage.copy_bytes;
  options.copy_time = owner.copy_time;
  options.notice = [](const std::string& sentence) { spdlog::warn("{}", sentence); };
  for (auto at = size_t{0}; at < storage.tiers.size(); ++at)
    options.tiers.emplace_back() = HICACHE_TRY(open_store_tier(storage, at, owner, clock));
  return make_tiered_backend(std::move(options), clock);
}

result<std::unique_ptr<storage_backend>> open_stores(std::string_view backend,
                                                     const storage_config& storage,
                                                     const store_owner& owner,
                                                     const clock_source& clock) {
  if (storage.tiers.empty())
    return open_one(backend, storage, owner, clock);
  return open_tiers(storage, owner, clock);
}

} // namespace hicache
