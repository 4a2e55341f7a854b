#include "backends/serde/serde_backend.hpp"

#include "backends/serde/key_source.hpp"
#include "backends/serde/serde_core.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace hicache {

namespace serde {

namespace {

/// How long the key command may take. Key stores on other continents answer within seconds.
constexpr auto key_command_time = std::chrono::seconds{30};

constexpr size_t threads_max = 64;

class serde_backend final : public storage_backend {
public:
  serde_backend(std::shared_ptr<serde_core> core, std::shared_ptr<bounce_pool> pool, size_t threads)
    : core_(std::move(core)), pool_(std::move(pool)) {
    for (auto i = size_t{0}; i < threads; ++i)
      workers_.emplace_back([worker = core_] { worker->work(); });
  }

  ~serde_backend() override { close(limits::shutdown_grace); }

  std::string name() const override { return core_->store().name(); }

  store_capabilities capabilities() const override {
    auto answer = core_->store().capabilities();
    answer.orders_writes = false;
    answer.keeps_namespaces = false;
    answer.is_lossy = core_->is_lossy();
    return answer;
  }

  /// The store never sees the callers' memory, only the codecs'.
  result<void> attach_memory(std::span<const std::span<std::byte>>) override {
    return core_->store().attach_memory(std::array{pool_->memory()});
  }

  bool watch_evictions(eviction_watch watch, bool wants_bytes) override {
    return core_->watch_evictions(std::move(watch), wants_bytes);
  }

  bool watch_losses(loss_watch watch) override {
    return core_->store().watch_losses(std::move(watch));
  }

  batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done) override {
    auto names = core_->names_of(std::move(keys));
    return core_->forward<std::vector<result<store_place>>>(
      [&](auto answer) { return core_->store().lookup(std::move(names), deadline, answer); },
      std::move(done));
  }

  batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                    read_progress progress) override {
    auto next = new_transfer(pages.size(), deadline, std::move(done));
    next->is_read = true;
    next->read_batch = std::make_unique<store_batch<page_read>>(std::move(pages));
    next->progress = std::move(progress);
    return core_->submit(next);
  }

  batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done) override {
    auto next = new_transfer(pages.size(), deadline, std::move(done));
    next->write_batch = std::make_unique<store_batch<page_write>>(std::move(pages));
    return core_->submit(next);
  }

  batch_number promote(store_batch<page_write> pages, time_point deadline,
                       pages_done done) override {
    auto next = new_transfer(pages.size(), deadline, std::move(done));
    next->is_promotion = true;
    next->write_batch = std::make_unique<store_batch<page_write>>(std::move(pages));
    return core_->submit(next);
  }

  batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) override {
    auto names = core_->names_of(std::move(keys));
    return core_->forward<std::vector<result<void>>>(
      [&](auto answer) { return core_->store().remove(std::move(names), deadline, answer); },
      std::move(done));
  }

  void health(health_done done) override {
    core_->store().health([core = core_, done = std::move(done)](backend_health health) {
      done(core->corrected(std::move(health)));
    });
  }

  expiry expire(batch_number batch) override { return core_->expire(batch); }

  bool close(std::chrono::nanoseconds grace) override {
    const auto lock = std::scoped_lock{closing_};
    if (!is_closed_) {
      is_closed_ = core_->close(grace);
      workers_.clear();
    }
    return *is_closed_;
  }

private:
  static std::shared_ptr<transfer> new_transfer(size_t size, time_point deadline, pages_done done) {
    auto next = std::make_shared<transfer>();
    next->size = size;
    next->deadline = deadline;
    next->done = std::move(done);
    return next;
  }

  const std::shared_ptr<serde_core> core_;
  const std::shared_ptr<bounce_pool> pool_;
  std::mutex closing_; // Guards what follows.
  std::vector<std::jthread> workers_;
  std::optional<bool> is_closed_;
};

result<key_ring> keys_for(const serde_options& options) {
  if (options.codec.chain.encryption == encryption::none)
    return key_ring{};
  if (options.key_file.empty() == options.key_command.empty())
    return fail(ec::invalid_argument,
                "aes-256-gcm needs its keys from either a file or a command; "
                  + std::string{options.key_file.empty() ? "neither is" : "both are"} + " given");
  return options.key_file.empty() ? run_key_command(options.key_command, key_command_time)
                                  : read_key_file(options.key_file);
}

} // namespace

} // namespace serde

result<std::unique_ptr<storage_backend>> make_serde_backend(const serde_options& options,
                                                            std::unique_ptr<storage_backend> store,
                                                            const clock_source& clock) {
  const auto& chain = options.codec.chain;
  if (chain == serde::codec_chain{})
    return store;
  if (options.codec_threads < 1 || options.codec_threads > serde::threads_max)
    return fail(ec::invalid_argument, std::to_string(options.codec_threads)
                                        + " threads cannot encode objects; expected 1 to "
                                        + std::to_string(serde::threads_max));
  constexpr auto least_bytes = uint64_t{2} * serde::bounce_pool::alignment;
  constexpr auto most_bytes = uint64_t{1} << 40;
  if (options.codec_bytes < least_bytes || options.codec_bytes > most_bytes)
    return fail(ec::invalid_argument, "the codecs cannot use " + format_bytes(options.codec_bytes)
                                        + " of memory; expected " + format_bytes(least_bytes)
                                        + " to " + format_bytes(most_bytes));
  if (chain.compression != serde::compression::none && sized_reads_of(*store) == nullptr)
    return fail(ec::unsupported, "the backend '" + store->name()
                                   + "' cannot tell how long an object is, so its objects cannot "
                                     "be compressed; use fp8 or aes-256-gcm alone");
  auto keys = HICACHE_TRY(serde::keys_for(options));
  auto codec = HICACHE_TRY(serde::object_codec::make(options.codec, std::move(keys)));
  auto pool = serde::bounce_pool::make(options.codec_bytes);
  auto core = std::make_shared<serde::serde_core>(std::move(codec), std::move(store), pool, clock);
  return std::make_unique<serde::serde_backend>(std::move(core), std::move(pool),
                                                options.codec_threads);
}

} // namespace hicache
