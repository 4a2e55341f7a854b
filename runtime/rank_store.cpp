#include "runtime/rank_store.hpp"

#include "actors/storage.hpp"
#include "backends/ask.hpp"
#include "backends/end_actor.hpp"
#include "backends/node_backend.hpp"
#include "base/about.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "cache/hash/page_hash.hpp"
#include "stores/storage_config.hpp"
#include "stores/tier_list.hpp"

#include <spdlog/spdlog.h>

#include <array>
#include <span>
#include <utility>

namespace hicache {

namespace {

/// Adds a member's counters.
void count(store_figures& to, const cluster_member& member) {
  to.sent_bytes += member.sent_bytes();
  to.repaired_pages += member.figures()->repaired;
  to.repair_failures += member.figures()->repair_failures;
}

/// What the codecs can convert to fp8; nothing if it is fp8 already.
std::optional<serde::element_type> convertible(element_type type) {
  using to = serde::element_type;
  constexpr auto by_type
    = std::array<std::optional<to>, 4>{std::nullopt, to::fp16, to::bf16, to::fp32};
  return by_type[static_cast<size_t>(type)];
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

result<rank_config> rank_store::settings_for(const storage_attachment& wanted) const {
  auto settings = settings_;
  settings.storage_backend = wanted.backend;
  settings.extra_config = wanted.extra_config;
  settings.prefetch_policy = HICACHE_TRY(about_input(
    "--hicache-storage-prefetch-policy", parse_prefetch_policy(wanted.prefetch_policy)));
  HICACHE_TRY(settings.finish(ranks_));
  return settings;
}

result<std::unique_ptr<storage_backend>> rank_store::open_backend(const rank_config& settings) {
  const auto owner = owner_of(settings);
  if (settings.storage.tiers.empty())
    return open_stores(settings.storage_backend, settings.storage, owner, clock_);
  auto opened = open_tiers(settings.storage, owner, clock_);
  tiers_ = opened ? opened->get() : nullptr;
  return opened;
}

result<open_store> rank_store::open(const storage_attachment& wanted) {
  const auto guard = std::lock_guard{mutex_};
  HICACHE_CHECK(!actor_);
  const auto settings = HICACHE_TRY(settings_for(wanted));
  if (const auto slow = scattered_objects(settings, ranks_); slow && rank_ == 0)
    spdlog::warn("{}", *slow);
  auto opened = open_backend(settings);
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
  attached_ = {wanted.backend, settings.extra_config, wanted.prefetch_policy};
  const auto tree = tree_options_of(settings, ranks_);
  return open_store{actor_, tree.prefetch, tree.storage_exports_l2, [this] { close(); }};
}

result<store_change> rank_store::change(const storage_attachment& wanted,
                                        std::chrono::nanoseconds time) {
  const auto settings = HICACHE_TRY(settings_for(wanted));
  if (tiers_ == nullptr || wanted.prefetch_policy != attached_.prefetch_policy)
    return fail(ec::invalid_argument, "the backend " + attached_.backend
                                        + " is attached; expected it to be detached first");
  const auto [at, is_new]
    = HICACHE_TRY(compare_tiers(attached_.extra_config, settings.extra_config));
  const auto before = parse_storage_config(attached_.extra_config).value();
  const auto backend = (is_new ? settings.storage : before).tiers[at].tier.backend;
  HICACHE_TRY(is_new ? add_tier(settings, at) : suspend_tier(settings, at, time));
  const auto use = [this, at = at] { tiers_->resume_tier(at); };
  const auto drop = [this, at = at, backend] { remove_tier(at, backend); };
  const auto adopt = [this, is_new = is_new, use, drop, extra_config = settings.extra_config] {
    is_new ? use() : drop();
    attached_.extra_config = extra_config;
  };
  return is_new ? store_change{adopt, drop} : store_change{adopt, use};
}

result<void> rank_store::add_tier(const rank_config& settings, size_t at) {
  const auto guard = std::lock_guard{mutex_};
  auto tier = open_store_tier(settings.storage, at, owner_of(settings), clock_);
  auto added
    = tier ? tiers_->add_tier(std::move(*tier), at) : result<void>{tl::unexpected{tier.error()}};
  if (!added && settings.storage.tiers[at].tier.backend == "cluster")
    member_.reset();
  return added;
}

result<void> rank_store::suspend_tier(const rank_config& settings, size_t at,
                                      std::chrono::nanoseconds time) {
  if (settings.split(ranks_).replicas > 1 && store_->capabilities().is_shared
      && !tiers_->is_shared_without(at))
    return fail(ec::invalid_argument,
                "the ranks share the writing, because tier " + std::to_string(at + 1)
                  + " is shared, and no other tier that takes all writes is; expected L3 to be "
                    "detached first");
  return tiers_->suspend_tier(at, time);
}

void rank_store::remove_tier(size_t at, const std::string& backend) {
  const auto guard = std::lock_guard{mutex_};
  const auto has_returned = tiers_->remove_tier(at, settings_.shutdown_grace);
  if (!has_returned)
    spdlog::error("calls of a tier of L3 ({}) have not returned and are left behind", backend);
  has_abandoned_ |= !has_returned;
  if (backend == "cluster")
    leave_cluster(has_returned);
}

void rank_store::leave_cluster(bool has_returned) {
  if (member_)
    count(closed_, *member_);
  if (has_returned)
    member_.reset();
  else
    static_cast<void>(member_.release());
}

store_owner rank_store::owner_of(const rank_config& settings) {
  auto owner = store_owner{};
  owner.fingerprint = fingerprint_of(settings.fingerprint());
  owner.rank = rank_;
  owner.ranks = ranks_;
  if (const auto element = convertible(*settings.dtype))
    owner.objects
      = {settings.shape(ranks_), settings.mem_layout, settings.heads_per_object(), *element};
  owner.copy_time = settings.storage_timeout;
  owner.open_other = [this, &settings, fingerprint = *owner.fingerprint](
                       std::string_view name,
                       const storage_config& storage) -> result<std::unique_ptr<blocking_store>> {
    if (name == "cluster")
      return open_cluster(settings, storage);
    auto store = make_node_backend(system_, {settings.node, fingerprint, settings.tls}, clock_);
    if (!store)
      return fail(store.error().code, "--node: " + to_string(store.error()));
    return store;
  };
  return owner;
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
  member_ = HICACHE_TRY(cluster_member::join(system_, std::move(options)));
  return member_->open();
}

bool rank_store::close() {
  const auto guard = std::lock_guard{mutex_};
  if (!actor_)
    return !has_abandoned_;
  if (const auto health = ask_health(limits::scrape_time))
    closed_.counters[store_->name()] += health->counters;
  end_actor(system_, std::exchange(actor_, nullptr));
  tiers_ = nullptr;
  const auto name = store_->name();
  const auto has_returned = std::exchange(store_, nullptr)->close(settings_.shutdown_grace);
  if (!has_returned)
    spdlog::error("calls of L3 ({}) have not returned and are left behind", name);
  has_abandoned_ |= !has_returned;
  leave_cluster(has_returned);
  return !has_abandoned_;
}

result<backend_health> rank_store::ask_health(std::chrono::nanoseconds timeout) {
  const auto health = HICACHE_TRY(ask<storage_health_ptr>(system_, actor_, caf::infinite,
                                                          atom::health_v, caf::timespan{timeout}));
  return *health;
}

result<storage_status> rank_store::ask_status(std::chrono::nanoseconds timeout) {
  return ask<storage_status>(system_, actor_, caf::timespan{timeout}, atom::status_v);
}

rank_counters rank_store::counters() {
  const auto guard = std::lock_guard{mutex_};
  auto total = rank_counters{};
  for (const auto& [name, counted] : closed_.counters)
    total.evicted_l3 += counted.evicted;
  if (actor_)
    total.evicted_l3 += ask_health(limits::scrape_time).value_or(backend_health{}).counters.evicted;
  return total;
}

std::optional<store_figures> rank_store::figures(std::chrono::nanoseconds timeout) {
  const auto guard = std::unique_lock{mutex_, timeout};
  if (!guard)
    return std::nullopt;
  auto figures = closed_;
  if (member_) {
    figures.exported_bytes = member_->exported_bytes();
    figures.unrepaired_pages = member_->figures()->unrepaired;
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

std::vector<tier_health> rank_store::tiers() {
  const auto guard = std::unique_lock{mutex_, limits::scrape_time};
  if (!guard || !actor_)
    return {};
  return ask_health(limits::scrape_time).value_or(backend_health{}).tiers;
}

uint64_t rank_store::exported_bytes() {
  const auto guard = std::lock_guard{mutex_};
  return member_ ? member_->exported_bytes() : 0;
}

} // namespace hicache
