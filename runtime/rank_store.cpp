#include "runtime/rank_store.hpp"

#include "actors/storage.hpp"
#include "backends/disk/disk_backend.hpp"
#include "backends/external/external_backend.hpp"
#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/node_backend.hpp"
#include "backends/redis/redis_backend.hpp"
#include "backends/s3/s3_backend.hpp"
#include "backends/serde/serde_backend.hpp"
#include "backends/storage_queue.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/caf_error.hpp"

#include <absl/strings/str_replace.h>
#include <caf/scoped_actor.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <array>
#include <optional>
#include <span>
#include <utility>

namespace hicache {

namespace {

/// Adds a member's counters.
void count(store_figures& to, const cluster_member& member) {
  to.sent_bytes += member.sent_bytes();
  to.repaired_pages += member.figures().repaired;
  to.repair_failures += member.figures().repair_failures;
}

/// What the codecs can convert to fp8; nothing if it is fp8 already.
std::optional<serde::element_type> convertible(element_type type) {
  switch (type) {
    case element_type::fp8:
      return std::nullopt;
    case element_type::fp16:
      return serde::element_type::fp16;
    case element_type::bf16:
      return serde::element_type::bf16;
    case element_type::fp32:
      return serde::element_type::fp32;
  }
  return std::nullopt;
}

/// @pre settings.finish(ranks) succeeded
serde_options codecs_of(const rank_config& settings, const storage_config& storage,
                        uint32_t ranks) {
  auto options = serde_options{};
  options.codec.chain = serde::parse_codec_chain(storage.codecs).value();
  options.codec.zstd_level = static_cast<int>(storage.zstd_level);
  if (const auto element = convertible(*settings.dtype))
    options.codec.objects = serde::kv_object_shape{settings.shape(ranks), settings.mem_layout,
                                                   settings.heads_per_object(), *element};
  options.codec.fingerprint = fingerprint_of(settings.fingerprint());
  options.key_file = storage.key_file;
  options.key_command = storage.key_command;
  options.codec_threads = storage.codec_threads;
  options.codec_bytes = storage.codec_bytes;
  return options;
}

result<redis_options> redis_of(const rank_config& settings, const storage_config& storage,
                               uint32_t ranks) {
  const auto& wanted = storage.redis;
  auto servers = rpc::parse_endpoints(wanted.servers);
  if (!servers)
    return fail(ec::invalid_argument, "key 'servers': " + servers.error().detail);
  auto options = redis_options{};
  options.servers.servers = std::move(*servers);
  options.servers.is_cluster = wanted.is_cluster;
  options.servers.access
    = {wanted.user,
       wanted.password_file,
       wanted.password_variable,
       {wanted.uses_tls, storage.tls_ca, wanted.tls_cert, wanted.tls_key, wanted.tls_name}};
  if (!storage.key_prefix.empty())
    options.key_prefix = storage.key_prefix;
  options.chunk_bytes = wanted.chunk_bytes;
  options.ttl = std::chrono::ceil<std::chrono::milliseconds>(wanted.ttl);
  options.max_bytes = storage.max_bytes / ranks;
  options.fingerprint = fingerprint_of(settings.fingerprint());
  return options;
}

s3_options s3_of(const rank_config& settings, const storage_config& storage, uint32_t ranks) {
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
  options.max_bytes = storage.max_bytes / ranks;
  options.fingerprint = fingerprint_of(settings.fingerprint());
  return options;
}

/// A word of a shell command that means itself.
std::string shell_word(std::string_view text) {
  return "'" + absl::StrReplaceAll({text.data(), text.size()}, {{"'", "'\\''"}}) + "'";
}

/// The shell command that starts a store's process; empty if it runs already.
std::string command_of(std::string_view name, const external_config& wanted) {
  if (name == "external")
    return wanted.command;
  const auto store = name == "dynamic"    ? wanted.module_path + ":" + wanted.class_name
                     : name == "mooncake" ? std::string{"hicache.mooncake_store:MooncakeStore"}
                                          : std::string{"hicache.nixl_store:NixlStore"};
  return "exec " + shell_word(wanted.python) + " -m hicache store-host --fd 3 " + shell_word(store);
}

external_options external_of(const rank_config& settings, std::string_view name,
                             const storage_config& storage, uint32_t ranks) {
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
          .max_bytes = storage.max_bytes / ranks,
          .fingerprint = fingerprint_of(settings.fingerprint())};
}

} // namespace

rank_store::rank_store(caf::actor_system& system, const rank_config& settings, uint32_t rank,
                       uint32_t ranks, const pool_geometry& l2, std::byte* l2_memory,
                       const shared_pools* shared, const clock_source& clock, backend_wrapper wrap,
                       std::function<void(const error&)> notice)
  : system_(system), settings_(settings), rank_(rank), ranks_(ranks), l2_(l2),
    l2_memory_(l2_memory), shared_(shared), clock_(clock), wrap_(std::move(wrap)),
    notice_(std::move(notice)) {}

rank_store::~rank_store() {
  close();
}

result<open_store> rank_store::open(const storage_attachment& wanted) {
  const auto guard = std::lock_guard{mutex_};
  HICACHE_CHECK(!actor_);
  auto settings = settings_;
  settings.storage_backend = wanted.backend;
  settings.extra_config = wanted.extra_config;
  const auto policy = parse_prefetch_policy(wanted.prefetch_policy);
  if (!policy)
    return fail(ec::invalid_argument,
                "--hicache-storage-prefetch-policy: " + policy.error().detail);
  settings.prefetch_policy = *policy;
  if (auto checked = settings.finish(ranks_); !checked)
    return tl::unexpected{checked.error()};
  if (const auto slow = scattered_objects(settings, ranks_); slow && rank_ == 0)
    spdlog::warn("{}", *slow);
  auto opened = open_store_of(settings);
  if (!opened) {
    member_.reset();
    return tl::unexpected{opened.error()};
  }
  auto store = std::move(*opened);
  if (wrap_)
    store = wrap_(std::move(store));
  const auto l2_memory = std::array{std::span{l2_memory_, l2_.total_bytes()}};
  if (const auto attached = store->attach_memory(l2_memory); !attached)
    spdlog::warn("L3 ({}) does not register L2: {}", store->name(), to_string(attached.error()));
  store_ = std::move(store);
  // Replicated ranks store the same bytes and share the writing, unless each has its own store.
  const auto replicas = store_->capabilities().is_shared ? settings.split(ranks_).replicas : 1;
  auto options = storage_options{};
  options.objects = std::make_shared<const page_objects>(
    settings.fingerprint(), settings.head_groups(rank_, ranks_), l2_, l2_memory_,
    page_writers{rank_ % replicas, replicas}, shared_ != nullptr ? shared_->exported : nullptr);
  options.clock = &clock_;
  options.breaker = settings.storage.breaker;
  options.notice = notice_;
  actor_ = system_.spawn(storage, std::move(options), store_);
  const auto tree = tree_options_of(settings, ranks_);
  return open_store{actor_, tree.prefetch, tree.storage_exports_l2, [this] { close(); }};
}

result<std::unique_ptr<storage_backend>> rank_store::open_store_of(const rank_config& settings) {
  const auto& storage = settings.storage;
  if (storage.tiers.empty())
    return open_backend(settings, settings.storage_backend, storage);
  auto options = tiered_options{};
  options.looks_up_in_parallel = storage.parallel_lookup;
  options.breaker = storage.breaker;
  options.copy_bytes = storage.copy_bytes;
  options.copy_time = settings.storage_timeout;
  options.notice = [](const std::string& sentence) { spdlog::warn("{}", sentence); };
  for (const auto& each : storage.tiers) {
    auto store = open_backend(settings, each.tier.backend, each);
    if (!store)
      return fail(store.error().code, "tier " + std::to_string(options.tiers.size() + 1) + " ("
                                        + each.tier.backend + "): " + store.error().detail);
    options.tiers.push_back({std::move(*store),
                             {parse_tier_writes(each.tier.write).value(), each.tier.promote,
                              each.tier.write_bytes_per_second, each.tier.write_bytes_per_day}});
  }
  return make_tiered_backend(std::move(options), clock_);
}

result<std::unique_ptr<storage_backend>> rank_store::open_backend(const rank_config& settings,
                                                                  std::string_view name,
                                                                  const storage_config& storage) {
  auto store = open_blocking(settings, name, storage);
  if (!store)
    return tl::unexpected{store.error()};
  auto coded = make_serde_backend(
    codecs_of(settings, storage, ranks_),
    std::make_unique<storage_queue>(std::move(*store), storage.threads), clock_);
  if (!coded)
    return fail(coded.error().code, "codecs of L3: " + coded.error().detail);
  return coded;
}

result<std::unique_ptr<blocking_store>> rank_store::open_blocking(const rank_config& settings,
                                                                  std::string_view name,
                                                                  const storage_config& storage) {
  const auto fingerprint = fingerprint_of(settings.fingerprint());
  if (name == "memory")
    return make_memory_backend(storage.max_bytes / ranks_, clock_);
  if (name == "file")
    return make_file_backend({{storage.path, storage.max_bytes}, fingerprint}, clock_);
  if (name == "disk")
    return make_disk_backend(storage.path + "/rank-" + std::to_string(rank_),
                             storage.max_bytes / ranks_, clock_);
  if (name == "redis") {
    auto options = redis_of(settings, storage, ranks_);
    if (!options)
      return tl::unexpected{options.error()};
    return make_redis_backend(std::move(*options), clock_);
  }
  if (name == "s3")
    return make_s3_backend(s3_of(settings, storage, ranks_), clock_);
  if (is_external_store(name))
    return make_external_backend(external_of(settings, name, storage, ranks_), clock_);
  if (name == "cluster")
    return open_cluster(settings, storage);
  auto store = make_node_backend(system_, {settings.node, fingerprint, settings.tls}, clock_);
  if (!store)
    return fail(store.error().code, "--node: " + to_string(store.error()));
  return store;
}

result<std::unique_ptr<blocking_store>> rank_store::open_cluster(const rank_config& settings,
                                                                 const storage_config& storage) {
  if (storage.zero_copy && shared_ == nullptr)
    return fail(
      ec::invalid_argument,
      "zero_copy exports L2, which this instance has in private memory; expected zero_copy "
      "in --hicache-storage-backend-extra-config when it starts");
  const auto object_bytes = l2_.object_bytes(settings.heads_per_object());
  if (storage.zero_copy && object_bytes != shared_->exported->objects().object_bytes)
    return fail(
      ec::invalid_argument,
      "zero_copy exports L2 in the objects that it has since the start; expected the same "
      "tp_lcm_size");
  auto options = cluster_member_options{};
  options.index = settings.index;
  options.index_connect_time = settings.index_connect_time;
  options.segment_bytes = settings.segment_bytes;
  options.policy = storage.segment;
  options.repair = storage.repair;
  options.object_bytes = object_bytes;
  options.fingerprint = fingerprint_of(settings.fingerprint());
  options.replicas = static_cast<uint32_t>(storage.replicas);
  options.host = storage.host;
  options.listen_host = settings.listen_host;
  options.tls = settings.tls;
  options.pages = settings.page_transport;
  options.path = storage.force_remote_reads ? read_path::remote : read_path::automatic;
  options.clock = &clock_;
  if (shared_ != nullptr) {
    options.memory = &shared_->memory;
    options.exported = storage.zero_copy ? shared_->exported : nullptr;
  }
  auto member = cluster_member::join(system_, std::move(options));
  if (!member)
    return tl::unexpected{member.error()};
  member_ = std::move(*member);
  return member_->open();
}

bool rank_store::close() {
  const auto guard = std::lock_guard{mutex_};
  if (!actor_)
    return !has_abandoned_;
  if (const auto health = ask_health(limits::scrape_time))
    closed_.counters[store_->name()] += health->counters;
  {
    auto self = caf::scoped_actor{system_};
    self->send_exit(actor_, caf::exit_reason::user_shutdown);
    self->wait_for(actor_);
  }
  actor_ = nullptr;
  if (member_)
    count(closed_, *member_);
  const auto name = store_->name();
  if (std::exchange(store_, nullptr)->close(settings_.shutdown_grace)) {
    member_.reset();
  } else {
    spdlog::error("calls of L3 ({}) have not returned and are left behind", name);
    static_cast<void>(member_.release());
    has_abandoned_ = true;
  }
  return !has_abandoned_;
}

result<backend_health> rank_store::ask_health(std::chrono::nanoseconds timeout) {
  auto outcome = result<backend_health>{};
  caf::scoped_actor {
    system_
    } -> request(actor_, caf::infinite, atom::health_v, caf::timespan{timeout})
      .receive([&](const storage_health_ptr& x) { outcome = *x; },
               [&](const caf::error& err) { outcome = tl::unexpected{from_caf(err)}; });
  return outcome;
}

result<storage_status> rank_store::ask_status(std::chrono::nanoseconds timeout) {
  auto outcome = result<storage_status>{};
  caf::scoped_actor {
    system_
    } -> request(actor_, caf::timespan{timeout}, atom::status_v)
      .receive([&](const storage_status& x) { outcome = x; },
               [&](const caf::error& err) { outcome = tl::unexpected{from_caf(err)}; });
  return outcome;
}

rank_counters rank_store::counters() {
  const auto guard = std::lock_guard{mutex_};
  auto total = rank_counters{};
  for (const auto& [name, counted] : closed_.counters)
    total.evicted_l3 += counted.evicted;
  if (!actor_)
    return total;
  if (const auto health = ask_health(limits::scrape_time))
    total.evicted_l3 += health->counters.evicted;
  return total;
}

std::optional<store_figures> rank_store::figures(std::chrono::nanoseconds timeout) {
  const auto guard = std::unique_lock{mutex_, timeout};
  if (!guard)
    return std::nullopt;
  auto figures = closed_;
  if (member_) {
    figures.exported_bytes = member_->exported_bytes();
    figures.unrepaired_pages = member_->figures().unrepaired;
    count(figures, *member_);
  }
  if (actor_) {
    const auto status = ask_status(timeout);
    const auto health = ask_health(timeout);
    if (!status || !health)
      return std::nullopt;
    figures.counters[store_->name()] += health->counters;
    figures.attached
      = attached_store{store_->name(), health->ok && status->is_up(), *status, {}, health->tiers};
    if (store_->capabilities().tells_occupancy)
      figures.attached->held = {health->objects, health->bytes, health->capacity_bytes};
  }
  for (const auto& [name, counted] : figures.counters)
    figures.evicted += counted.evicted;
  return figures;
}

std::optional<storage_status> rank_store::status() {
  const auto guard = std::unique_lock{mutex_, limits::scrape_time};
  if (!guard || !actor_)
    return std::nullopt;
  const auto status = ask_status(limits::scrape_time);
  return status ? std::optional{*status} : std::nullopt;
}

uint64_t rank_store::exported_bytes() {
  const auto guard = std::lock_guard{mutex_};
  return member_ ? member_->exported_bytes() : 0;
}

} // namespace hicache
