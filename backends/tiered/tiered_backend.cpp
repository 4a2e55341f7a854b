#include "backends/tiered/tiered_backend.hpp"

#include "backends/tiered/tier_batches.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Threads that make the lists of batches: naming pages keeps one busy while the other goes on.
constexpr size_t workers = 2;

store_capabilities capabilities_of(const std::vector<store_tier>& tiers) {
  auto all = store_capabilities{};
  // Write batches may overtake each other on the way to a tier, so `orders_writes` stays false.
  all.tells_occupancy = true;
  all.keeps_namespaces = true;
  for (const auto& [store, rules] : tiers) {
    const auto one = store->capabilities();
    const auto takes_all = rules.writes.which == tier_writes::rule::all;
    all.survives_restarts = all.survives_restarts || one.survives_restarts;
    all.is_shared = all.is_shared || (one.is_shared && takes_all);
    all.tells_occupancy = all.tells_occupancy && one.tells_occupancy;
    all.keeps_namespaces = all.keeps_namespaces && one.keeps_namespaces;
    all.preferred_object_bytes = std::max(all.preferred_object_bytes, one.preferred_object_bytes);
    all.preferred_batch = std::max(all.preferred_batch, one.preferred_batch);
  }
  return all;
}

class tiered_backend final : public tiered_store {
public:
  tiered_backend(std::shared_ptr<tiered_core> core, const store_capabilities& capabilities)
    : core_(std::move(core)), capabilities_(capabilities) {
    for (auto i = size_t{0}; i < workers; ++i)
      threads_.emplace_back([core = core_] { core->work(); });
  }

  ~tiered_backend() override { close(limits::shutdown_grace); }

  std::string name() const override { return "tiered"; }

  store_capabilities capabilities() const override { return capabilities_; }

  tier_names tiers() const override { return core_->names(); }

  result<void> attach_memory(std::span<const std::span<std::byte>> regions) override {
    return core_->attach_memory(regions);
  }

  bool watch_evictions(eviction_watch watch, bool wants_bytes) override {
    return !wants_bytes && core_->watch_evictions(std::move(watch));
  }

  bool watch_losses(loss_watch watch) override { return core_->watch_losses(std::move(watch)); }

  batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done) override {
    return core_->submit(std::make_shared<tier_lookup>(std::move(keys), deadline, std::move(done)));
  }

  batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                    read_progress progress) override {
    return core_->submit(std::make_shared<tier_read>(std::move(pages), deadline, std::move(done),
                                                     std::move(progress)));
  }

  batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done) override {
    return core_->submit(std::make_shared<tier_write>(std::move(pages), deadline, std::move(done)));
  }

  batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) override {
    return core_->submit(std::make_shared<tier_remove>(std::move(keys), deadline, std::move(done)));
  }

  batch_number list(std::string from, time_point deadline, list_done done) override {
    return core_->submit(std::make_shared<tier_list>(std::move(from), deadline, std::move(done)));
  }

  void health(health_done done) override {
    struct gathered {
      std::mutex mutex;
      std::vector<backend_health> healths;
      size_t left = 0;
    };
    const auto all = std::make_shared<gathered>();
    const auto tiers = core_->order();
    all->healths.resize(tiers->size());
    all->left = tiers->size();
    for (auto tier = size_t{0}; tier < tiers->size(); ++tier)
      (*tiers)[tier]->store->health([core = core_, tiers, all, tier, done](backend_health one) {
        {
          const auto lock = std::scoped_lock{all->mutex};
          all->healths[tier] = std::move(one);
          if (--all->left > 0)
            return;
        }
        done(core->sum_of(*tiers, std::move(all->healths)));
      });
  }

  result<void> add_tier(store_tier tier, size_t at) override {
    return core_->add(std::move(tier), at);
  }

  result<void> suspend_tier(size_t at, std::chrono::nanoseconds time) override {
    return core_->suspend(at, time);
  }

  void resume_tier(size_t at) override { core_->resume(at); }

  bool remove_tier(size_t at, std::chrono::nanoseconds grace) override {
    return core_->remove(at, grace);
  }

  bool is_shared_without(size_t at) override { return core_->is_shared_without(at); }

  expiry expire(batch_number batch) override { return core_->expire(batch); }

  bool close(std::chrono::nanoseconds grace) override {
    const auto lock = std::scoped_lock{closing_};
    if (!is_closed_) {
      is_closed_ = core_->close(grace);
      threads_.clear();
    }
    return *is_closed_;
  }

private:
  const std::shared_ptr<tiered_core> core_;
  const store_capabilities capabilities_;
  std::mutex closing_; // Guards what follows.
  std::vector<std::jthread> threads_;
  std::optional<bool> is_closed_;
};

} // namespace

result<std::unique_ptr<tiered_store>> make_tiered_backend(tiered_options options,
                                                          const clock_source& clock) {
  const auto capabilities = capabilities_of(options.tiers);
  const auto core = std::make_shared<tiered_core>(options, clock);
  HICACHE_TRY(core->open(std::move(options.tiers)));
  return std::make_unique<tiered_backend>(core, capabilities);
}

} // namespace hicache
