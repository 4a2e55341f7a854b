#include "c_tree/cache.hpp"

#include "backends/ask.hpp"
#include "backends/end_actor.hpp"
#include "base/try.hpp"
#include "c_abi/quiet_signals.hpp"
#include "hicache/caf_error.hpp"
#include "hicache/events.hpp"
#include "hicache/rank_reducer.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

using namespace hicache;

namespace {

/// Maximum news queued for the caller.
constexpr auto most_news = size_t{65536};

/// The engine actor: queues the runtime's reports for the caller.
engine_actor::behavior_type listener(engine_actor::pointer, news_queue* news) {
  return {
    [news](atom::notice, const caf::error& what) { news->add(from_caf(what)); },
    [news](atom::notify) { news->add(step_news{}); },
    [news](atom::events, const cache_events_ptr& events) {
      for (const auto& event : events->list())
        news->add(event);
    },
  };
}

/// The engine's own L1.
device_layers registered_layers(const pool_shape& shape, const hc_cache_options& options) {
  auto layers = device_layers{shape, options.l1_pages, {}};
  for (auto i = size_t{0}; i < options.layer_count; ++i) {
    const auto& one = options.layers[i];
    layers.buffers.push_back({one.address, one.page_stride, one.token_stride});
  }
  return layers;
}

result<void> check(const hc_cache_options& options) {
  if ((options.flags & ~uint32_t{HC_CACHE_EVENTS}) != 0)
    return fail(ec::unsupported,
                "options: flags: " + std::to_string(options.flags) + "; expected HC_CACHE_EVENTS");
  if (options.layers == nullptr && (options.layer_count > 0 || options.l1_pages > 0))
    return fail(ec::invalid_argument, "options: layers: NULL, though there are some");
  for (auto i = size_t{0}; i < options.layer_count; ++i)
    if (options.layers[i].address == 0 || options.layers[i].reserved[0] != 0
        || options.layers[i].reserved[1] != 0)
      return fail(ec::invalid_argument, "options: layer " + std::to_string(i)
                                          + ": expected an address, and 0 in the reserved room");
  return {};
}

} // namespace

result<std::unique_ptr<hc_cache>> hc_cache::open(cache_setup settings,
                                                 const hc_cache_options& options) {
  HICACHE_TRY(check(options));
  const auto quiet = quiet_signals{};
  auto cache = std::unique_ptr<hc_cache>{new hc_cache(std::move(settings), options)};
  HICACHE_TRY(cache->start(options));
  return cache;
}

hc_cache::hc_cache(cache_setup settings, const hc_cache_options& options)
  : settings_(std::move(settings)),
    log_(options.log, options.log_user, to_string(settings_.config.log_level)), news_(most_news),
    system_(config_) {}

hc_cache::~hc_cache() {
  news_.close();
  answers_->end();
  runtime_.reset();
  end_actor(system_, engine_);
}

result<std::unique_ptr<rank_reducer>> hc_cache::meet_others() const {
  if (settings_.place.rendezvous.empty())
    return std::move(make_local_reducers(1).front());
  const auto options = HICACHE_TRY(settings_.place.options(settings_.config));
  return make_socket_reducer(options);
}

result<void> hc_cache::start(const hc_cache_options& options) {
  HICACHE_TRY(news_.start());
  auto ranks = HICACHE_TRY(meet_others());
  engine_ = system_.spawn(listener, &news_);
  auto extensions = rank_extensions{};
  extensions.events = (options.flags & HC_CACHE_EVENTS) != 0;
  const auto layers = registered_layers(settings_.config.shape(ranks->size()), options);
  auto runtime = rank_runtime::start(settings_.config, std::move(ranks), engine_,
                                     options.layers == nullptr ? nullptr : &layers, extensions);
  if (!runtime && runtime.error().code == ec::stopping)
    return fail(ec::stopping, "another rank could not be opened, and says why");
  runtime_ = HICACHE_TRY(std::move(runtime));
  spdlog::info("rank {} of {}: {}", runtime_->rank(), runtime_->ranks(), runtime_->description());
  return {};
}

hc_cache_info hc_cache::info() const {
  const auto& layers = runtime_->device_buffers();
  const auto pool = pool_geometry{layers.shape, host_layout::layer_first, layers.pages};
  auto said = hc_cache_info{};
  said.rank = runtime_->rank();
  said.ranks = runtime_->ranks();
  said.page_size = layers.shape.page_size;
  said.layers = layers.shape.layers;
  said.parts = static_cast<uint32_t>(pool.parts().size());
  said.is_host_addressable = runtime_->device_is_host_addressable() ? 1 : 0;
  said.device_pages = settings_.config.l1_pages;
  said.host_pages = settings_.config.l2_pages(runtime_->ranks());
  std::ranges::transform(pool.parts(), said.row_bytes,
                         [&](auto part) { return pool.row_bytes(part); });
  return said;
}

result<hc_layer> hc_cache::layer(uint32_t part, uint32_t layer) const {
  const auto& all = runtime_->device_buffers();
  const auto parts = parts_of(all.shape.attention).size();
  if (part >= parts || layer >= all.shape.layers)
    return fail(ec::invalid_argument);
  const auto& one = all.buffers[part * all.shape.layers + layer];
  return hc_layer{one.address, one.page_stride, one.token_stride, {}};
}

std::unique_ptr<hc_answers> hc_cache::apply(tree_operations ops, std::vector<uint32_t> kinds) {
  auto call = std::make_unique<tree_call>(runtime_->system(), runtime_->tree(), std::move(ops));
  return std::make_unique<hc_answers>(std::move(kinds), std::move(call), answers_);
}

result<hc_facts> hc_cache::step(std::chrono::milliseconds wait) {
  auto facts = HICACHE_TRY(ask<step_result>(runtime_->system(), runtime_->tree(), caf::infinite,
                                            atom::step_v, caf::timespan{wait}));
  ready_.clear();
  for (const auto& one : facts.ready)
    ready_.push_back({one.request, one.fetched_tokens, one.l1_tokens, one.l2_tokens, {}});
  failed_ = std::move(facts.failed);
  auto said = hc_facts{};
  said.in_flight = facts.in_flight ? 1 : 0;
  said.was_in_flight = facts.was_in_flight ? 1 : 0;
  said.ready = ready_.data();
  said.ready_count = ready_.size();
  said.failed = failed_.data();
  said.failed_count = failed_.size();
  return said;
}

hc_cache_counters hc_cache::counters() {
  const auto seen = runtime_->counters();
  auto said = hc_cache_counters{};
  said.bytes_l1_to_l2 = seen.bytes_l1_to_l2;
  said.bytes_l2_to_l1 = seen.bytes_l2_to_l1;
  said.bytes_l2_to_l3 = seen.bytes_l2_to_l3;
  said.bytes_l3_to_l2 = seen.bytes_l3_to_l2;
  said.evicted_l1 = seen.evicted_l1;
  said.evicted_l2 = seen.evicted_l2;
  said.steps = seen.steps;
  said.storage_failures = seen.storage_failures;
  said.errors = seen.errors;
  said.free_l1 = seen.free_l1;
  said.free_l2 = seen.free_l2;
  return said;
}
