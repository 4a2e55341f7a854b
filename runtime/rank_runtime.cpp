#include "actors/attachment.hpp"
#include "actors/backup.hpp"
#include "actors/controller.hpp"
#include "actors/event_publisher.hpp"
#include "actors/op_recorder.hpp"
#include "actors/prefetcher.hpp"
#include "actors/rank_reduction.hpp"
#include "actors/tree.hpp"
#include "backends/ask.hpp"
#include "backends/end_actor.hpp"
#include "base/about.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/runtime.hpp"
#include "hicache/system_config.hpp"
#include "runtime/admin_server.hpp"
#include "runtime/ask_counters.hpp"
#include "runtime/metrics_server.hpp"
#include "runtime/rank_agreement.hpp"
#include "runtime/rank_metrics.hpp"
#include "runtime/rank_store.hpp"
#include "runtime/shared_pools.hpp"
#include "runtime/stray_listeners.hpp"
#include "transport/own_listeners.hpp"

#include <absl/strings/str_format.h>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <bit>
#include <fstream>
#include <mutex>
#include <utility>

namespace hicache {

namespace {

class runtime_impl final : public rank_runtime, private storage_admin {
public:
  runtime_impl(const rank_config& config, uint32_t rank, uint32_t ranks, engine_actor engine,
               rank_extensions extensions)
    : config_(config), rank_(rank), ranks_(ranks), engine_(std::move(engine)),
      extensions_(std::move(extensions)),
      l1_(config.shape(ranks), host_layout::layer_first, config.l1_pages + 1),
      l2_(config.shape(ranks), config.mem_layout, config.l2_pages(ranks) + 1),
      system_(std::make_unique<caf::actor_system>(*system_config_)) {}

  ~runtime_impl() override {
    // Producers of work end before consumers; the network of L3 ends last.
    metrics_.reset();
    end_changes();
    admin_.reset();
    const auto end = [this](auto& actor) { end_actor(*system_, std::exchange(actor, nullptr)); };
    end(tree_);
    end(recorder_);
    end(publisher_);
    end(prefetcher_);
    end(backup_);
    end(controller_);
    const auto all_returned = !store_ || store_->close();
    end(rank_reduction_);
    if (!all_returned)
      leave_behind();
  }

  /// Initialises what does not need the other ranks.
  /// @param registered The engine's L1 pool, or null.
  result<void> prepare(const device_layers* registered, uint32_t ranks_on_host) {
    const auto pool
      = registered != nullptr && !registered->buffers.empty() ? registered->buffers[0].address : 0;
    device_ = HICACHE_TRY(make_device(config_.device, pool));
    HICACHE_TRY(prepare_l1_pool(registered));
    HICACHE_TRY(prepare_l2_pool(ranks_on_host));
    copies_ = HICACHE_TRY(
      device_->make_copy_engine(l1_buffers_, l2_, *l2_memory_, copy_options_of(config_)));
    layer_events_ = copies_->layer_events();
    HICACHE_TRY(open_op_log());
    HICACHE_TRY(open_events());
    HICACHE_TRY(open_store());
    HICACHE_TRY(open_admin());
    return open_metrics();
  }

  void spawn(std::unique_ptr<rank_reducer> ranks) {
    rank_reduction_ = system_->spawn(hicache::rank_reduction, std::move(ranks));
    const auto page_bytes = l2_.page_bytes();
    auto settings = tree_options_of(config_, ranks_);
    settings.events = extensions_.events || events_;
    if (extensions_.eviction)
      settings.eviction = extensions_.eviction;
    const auto fences = copies_->fences();
    controller_ = system_->spawn(controller, std::move(copies_), page_bytes,
                                 shared_ ? shared_->exported : nullptr);
    if (op_log_)
      recorder_
        = system_->spawn<caf::detached>(op_recorder, op_log_name_, std::move(op_log_), settings);
    if (events_)
      publisher_ = system_->spawn<caf::detached>(event_publisher,
                                                 event_publisher_options{config_.kv_events_topic,
                                                                         config_.kv_events_format,
                                                                         config_.page_size},
                                                 std::move(events_), std::move(replay_));
    prefetcher_ = system_->spawn(prefetcher,
                                 prefetcher_options{config_.storage_timeout, page_bytes,
                                                    config_.traffic, config_.prefetch_when},
                                 opened_.actor, rank_reduction_);
    backup_ = system_->spawn(backup, opened_.actor,
                             backup_options{config_.storage_timeout, page_bytes, config_.traffic});
    const auto helpers = tree_helpers{controller_, rank_reduction_, prefetcher_,
                                      backup_,     engine_,         recorder_,
                                      publisher_,  fences,          config_.prefill_speed};
    tree_ = system_->spawn(hicache::tree, settings, helpers, clock_.get(),
                           caf::timespan{config_.step_timeout});
    add_metrics(std::make_shared<rank_metrics>([this] { return figures(); }));
    if (!is_changeable())
      return;
    auto options = attachment_options{};
    options.rank = rank_;
    options.ranks = ranks_;
    options.open = [this](const storage_attachment& wanted) { return store_->open(wanted); };
    options.change = [this](const storage_attachment& wanted, caf::timespan time) {
      return store_->change(wanted, time);
    };
    options.attached
      = {config_.storage_backend, config_.extra_config, to_string(config_.prefetch_policy)};
    options.store = std::move(opened_);
    options.patience = config_.step_timeout;
    const auto guard = std::lock_guard{mutex_};
    attachment_ = system_->spawn<caf::detached>(
      attachment, std::move(options),
      attachment_peers{tree_, prefetcher_, backup_, rank_reduction_});
  }

  tree_actor tree() const override { return tree_; }

  rank_reduction_actor rank_reduction() const override { return rank_reduction_; }

  caf::actor_system& system() override { return *system_; }

  uint32_t rank() const override { return rank_; }

  uint32_t ranks() const override { return ranks_; }

  const device_layers& device_buffers() const override { return l1_buffers_; }

  const pool_geometry& device_geometry() const override { return l1_; }

  device_memory& l1_pool() override {
    HICACHE_CHECK(l1_memory_ != nullptr);
    return *l1_memory_;
  }

  bool device_is_host_addressable() const override { return device_->host_addressable(); }

  result<void> wait_for_layer(const layer_progress& progress, void* stream,
                              uint32_t layer) override {
    return device_->wait_for_layer(progress, stream, layer);
  }

  const std::vector<void*>& layer_events() const override { return layer_events_; }

  std::string description() const override {
    auto text = absl::StrFormat("%s; L1 %s in %d pages%s, L2 %s in %d pages (%s; %s) per rank",
                                device_->name(), format_bytes(l1_.total_bytes()), config_.l1_pages,
                                l1_memory_ ? "" : " of the engine", format_bytes(l2_.total_bytes()),
                                config_.l2_pages(ranks_), to_string(config_.mem_layout),
                                l2_memory_->description());
    if (!config_.storage_backend.empty())
      text += absl::StrFormat("; L3 %s, namespace %016x", config_.storage_backend,
                              fingerprint_of(config_.fingerprint()));
    if (store_->exported_bytes() > 0)
      text += ", exporting " + format_bytes(store_->exported_bytes()) + " per rank";
    if (admin_)
      text += "; administered at " + admin_->address();
    if (metrics_)
      text += "; metrics at " + metrics_->address();
    if (publisher_)
      text += "; events at " + events_endpoint_;
    return text;
  }

  rank_counters counters() override {
    auto total = store_->counters();
    if (auto asked
        = ask_counters(*system_, caf::infinite, total, tree_, controller_, prefetcher_, backup_);
        !asked)
      spdlog::warn("no counters: {}", to_string(asked.error()));
    return total;
  }

  void add_metrics(std::shared_ptr<const prometheus::Collectable> source) override {
    if (metrics_)
      metrics_->add(std::move(source));
  }

private:
  /// True if L3 can be attached and detached at run time.
  bool is_changeable() const { return !config_.admin_listen.empty(); }

  storage_attachment show() override {
    const auto whom = changer();
    if (!whom)
      return {};
    return ask<storage_attachment>(*system_, whom, caf::infinite, atom::status_v)
      .value_or(storage_attachment{});
  }

  std::optional<storage_status> status() override { return store_->status(); }

  std::vector<tier_health> tiers() override { return store_->tiers(); }

  result<void> attach(const storage_attachment& wanted,
                      std::chrono::nanoseconds deadline) override {
    const auto whom = changer();
    if (!whom)
      return fail(ec::stopping, "the instance starts or ends");
    HICACHE_TRY(ask<atom::ok>(*system_, whom, caf::infinite, atom::attach_v, wanted,
                              caf::timespan{deadline}));
    return {};
  }

  result<void> detach(std::chrono::nanoseconds deadline) override { return attach({}, deadline); }

  /// Rejects new changes of L3 and aborts one in progress.
  void end_changes() {
    auto whom = attachment_actor{};
    {
      const auto guard = std::lock_guard{mutex_};
      whom = std::exchange(attachment_, nullptr);
    }
    if (!whom)
      return;
    // The other ranks end as well and learn of the abort here; the timeout covers a lost rank.
    static_cast<void>(
      ask<atom::ok>(*system_, whom, caf::timespan{limits::end_of_changes}, atom::abort_v));
    end_actor(*system_, whom);
  }

  /// Leaks what outstanding L3 calls may still use, so that it stays valid until the process ends.
  void leave_behind() {
    const auto leak = [](auto&... owners) { (static_cast<void>(owners.release()), ...); };
    // Destroying the system would also wait for the actors of a cluster member.
    leak(store_, l2_memory_, shared_, device_, clock_, system_, system_config_);
  }

  attachment_actor changer() {
    const auto guard = std::lock_guard{mutex_};
    return attachment_;
  }

  result<void> prepare_l1_pool(const device_layers* registered) {
    if (registered != nullptr) {
      if (registered->shape != l1_.shape() || registered->pages < l1_.pages())
        return fail(ec::invalid_argument,
                    absl::StrFormat("the registered pool has %d pages or another shape than the "
                                    "settings; expected %s and %d pages, padding included",
                                    registered->pages, to_string(l1_.shape()), l1_.pages()));
      l1_buffers_ = *registered;
      return l1_buffers_.check();
    }
    l1_memory_
      = HICACHE_TRY(about("device pool (--device-pages)", device_->allocate(l1_.total_bytes())));
    l1_buffers_ = device_layers::of(l1_, std::bit_cast<uint64_t>(l1_memory_->data()));
    return {};
  }

  result<void> prepare_l2_pool(uint32_t ranks_on_host) {
    auto options = host_memory_options{};
    options.ranks_on_host = ranks_on_host;
    if (rank_ == 0)
      options.progress
        = [next = clock_->now() + std::chrono::seconds{1}, this](auto ready, auto total) mutable {
            if (clock_->now() < next)
              return;
            next = clock_->now() + std::chrono::seconds{1};
            spdlog::info("host pool: {} of {} are ready", format_bytes(ready), format_bytes(total));
          };
    l2_memory_ = HICACHE_TRY(
      about("host pool (--hicache-ratio, --hicache-size)", take_host_memory(options)));
    return {};
  }

  result<std::unique_ptr<device_memory>> take_host_memory(const host_memory_options& options) {
    // L3 may be attached later, but L2 must be allocated as shared memory from the start.
    if (!config_.storage.zero_copy || !(config_.storage_backend == "cluster" || is_changeable()))
      return device_->allocate_host(l2_.total_bytes(), options);
    auto pools = HICACHE_TRY(
      about("zero_copy, with --segment-size",
            shared_pools::create(config_.segment_bytes, l2_, config_.heads_per_object())));
    shared_ = std::make_unique<shared_pools>(std::move(pools));
    return device_->adopt_host(shared_->l2(), options);
  }

  result<void> open_op_log() {
    if (config_.record_ops.empty())
      return {};
    op_log_name_ = config_.record_ops + (ranks_ > 1 ? "." + std::to_string(rank_) : "");
    op_log_ = std::make_unique<std::ofstream>(op_log_name_, std::ios::trunc);
    if (!*op_log_)
      return fail(ec::invalid_argument, "--record-ops: cannot write the file " + op_log_name_);
    return {};
  }

  result<void> open_events() {
    // Events are equal on all ranks, so only rank 0 publishes them.
    if (rank_ != 0 || config_.kv_events.empty())
      return {};
    events_ = HICACHE_TRY(about("--kv-events", event_socket::open(config_.kv_events)));
    events_endpoint_ = events_->endpoint();
    if (config_.kv_events_replay.empty())
      return {};
    replay_
      = HICACHE_TRY(about("--kv-events-replay", event_replay::open(config_.kv_events_replay)));
    events_endpoint_ += ", again at " + replay_->endpoint();
    return {};
  }

  result<void> open_store() {
    store_ = std::make_unique<rank_store>(*system_, config_, rank_, ranks_, l2_, l2_memory_->data(),
                                          shared_.get(), *clock_, extensions_.wrap,
                                          [engine = engine_](const error& why) {
                                            if (engine)
                                              caf::anon_send(engine, atom::notice_v, to_caf(why));
                                          });
    if (config_.storage_backend.empty())
      return {};
    const auto listeners = listening_addresses();
    opened_ = HICACHE_TRY(store_->open(
      {config_.storage_backend, config_.extra_config, to_string(config_.prefetch_policy)}));
    warn_of_stray_listeners(listeners, config_.listen_host,
                            "UCX; UCX_NET_DEVICES names the devices that it may use");
    return {};
  }

  result<void> open_admin() {
    if (rank_ != 0 || !is_changeable())
      return {};
    admin_
      = HICACHE_TRY(admin_server::start({config_.admin_listen, config_.admin_token_file}, *this));
    return {};
  }

  result<void> open_metrics() {
    if (config_.metrics.port == 0)
      return {};
    metrics_ = HICACHE_TRY(metrics_server::start(
      {config_.metrics.host, static_cast<uint16_t>(config_.metrics.port + rank_)}));
    return {};
  }

  rank_figures figures() {
    auto figures = rank_figures{};
    figures.rank = rank_;
    figures.l1 = {config_.l1_pages, config_.l1_pages * l1_.page_bytes()};
    figures.l2 = {config_.l2_pages(ranks_), config_.l2_pages(ranks_) * l2_.page_bytes()};
    auto counted = rank_counters{};
    if (ask_counters(*system_, caf::duration{limits::scrape_time}, counted, tree_, controller_,
                     prefetcher_, backup_))
      figures.counters = counted;
    figures.store = store_->figures(limits::scrape_time);
    return figures;
  }

  rank_config config_;
  uint32_t rank_;
  uint32_t ranks_;
  engine_actor engine_;
  rank_extensions extensions_;
  std::unique_ptr<monotonic_clock> clock_ = std::make_unique<monotonic_clock>();
  pool_geometry l1_;
  pool_geometry l2_;
  device_layers l1_buffers_;
  std::unique_ptr<system_config> system_config_ = std::make_unique<system_config>();
  // Destroyed in reverse order: pools outlive the actor system.
  std::unique_ptr<device> device_;
  std::unique_ptr<device_memory> l1_memory_;
  /// Null unless L2 can be exported.
  std::unique_ptr<shared_pools> shared_;
  std::unique_ptr<device_memory> l2_memory_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<rank_store> store_;
  hicache::open_store opened_;
  std::unique_ptr<copy_engine> copies_;
  std::vector<void*> layer_events_;
  std::string op_log_name_;
  std::unique_ptr<std::ofstream> op_log_;
  std::unique_ptr<event_socket> events_;
  std::unique_ptr<event_replay> replay_;
  /// Endpoints of the events, for the description.
  std::string events_endpoint_;
  tree_core_actor tree_;
  op_recorder_actor recorder_;
  event_publisher_actor publisher_;
  controller_actor controller_;
  prefetcher_actor prefetcher_;
  backup_actor backup_;
  rank_reduction_core_actor rank_reduction_;
  std::mutex mutex_;
  attachment_actor attachment_; // Guarded by mutex_: used by the server's threads.
  std::unique_ptr<admin_server> admin_;
  std::unique_ptr<metrics_server> metrics_;
};

} // namespace

result<std::unique_ptr<rank_runtime>> rank_runtime::start(const rank_config& config,
                                                          std::unique_ptr<rank_reducer> ranks,
                                                          const engine_actor& engine,
                                                          const device_layers* registered,
                                                          const rank_extensions& extensions) {
  const auto rank = ranks->rank();
  const auto size = ranks->size();
  // Before anything is allocated with settings that may differ between ranks.
  auto fields = shared_settings(config);
  fields.emplace_back("radix-eviction-policy of the engine's own",
                      extensions.eviction ? extensions.eviction->name() : "");
  HICACHE_TRY(agree_on_settings(*ranks, fields));
  const auto here = HICACHE_TRY(count_ranks_on_host(*ranks));
  auto runtime = std::make_unique<runtime_impl>(config, rank, size, engine, extensions);
  HICACHE_TRY(agree_on_outcome(*ranks, runtime->prepare(registered, here)));
  runtime->spawn(std::move(ranks));
  return runtime;
}

} // namespace hicache
