#include "backends/memory_backend.hpp"

#include "backends/lru_table.hpp"
#include "backends/object_parts.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <mutex>

namespace hicache {

namespace {

struct stored_page {
  page_key parent;
  uint64_t tenant = 0;
  uint64_t fingerprint = 0;
  /// Shared, so that they are copied without the lock and outlive an eviction.
  std::shared_ptr<const std::vector<std::byte>> bytes;
  time_point used;
};

class memory_backend final : public blocking_store {
public:
  memory_backend(uint64_t max_bytes, const clock_source& clock)
    : max_bytes_(max_bytes), clock_(clock) {}

  std::string name() const override { return "memory"; }

  store_capabilities capabilities() const override {
    return {.tells_occupancy = true, .keeps_namespaces = true, .preferred_batch = 32};
  }

  /// The bytes are at hand, so they are told in any case.
  bool watch_evictions(storage_backend::eviction_watch watch, bool) override {
    const auto lock = std::scoped_lock{mutex_};
    watch_ = std::move(watch);
    return true;
  }

  bool watch_losses(storage_backend::loss_watch watch) override {
    const auto lock = std::scoped_lock{mutex_};
    losses_ = std::move(watch);
    return true;
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<bool>(keys.size(), false);
    if (clock_.now() >= deadline)
      return answers;
    const auto lock = std::scoped_lock{mutex_};
    for (auto i = size_t{0}; i < keys.size(); ++i)
      answers[i] = pages_.contains(keys[i]);
    return answers;
  }

  bool tells_lengths() const override { return true; }

  std::vector<result<uint64_t>> read(std::span<const page_read> pages, part_lengths rule,
                                     time_point deadline) override {
    auto answers = std::vector<result<uint64_t>>{};
    for (const auto& page : pages) {
      answers.push_back(clock_.now() < deadline ? get_page(page, rule)
                                                : fail(ec::deadline_exceeded));
      const auto lock = std::scoped_lock{mutex_};
      counters_.count_get(answers.back());
    }
    return answers;
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    auto answers = std::vector<result<void>>{};
    for (const auto& page : pages) {
      answers.push_back(clock_.now() < deadline ? set_page(page) : fail(ec::deadline_exceeded));
      const auto lock = std::scoped_lock{mutex_};
      counters_.count_set(answers.back());
    }
    return answers;
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    if (clock_.now() >= deadline)
      return std::vector<result<void>>(keys.size(), fail(ec::deadline_exceeded));
    const auto lock = std::scoped_lock{mutex_};
    for (const auto& key : keys)
      pages_.erase(key);
    return std::vector<result<void>>(keys.size());
  }

  result<object_list> list(const std::string&, time_point) override {
    auto listed = object_list{};
    const auto lock = std::scoped_lock{mutex_};
    for (const auto& entry : pages_.entries())
      listed.objects.push_back(
        {entry.key, entry.value.parent, entry.bytes, entry.value.fingerprint});
    return listed;
  }

  backend_health health() override {
    const auto lock = std::scoped_lock{mutex_};
    return {true, {}, pages_.size(), pages_.bytes(), max_bytes_, counters_, {}};
  }

private:
  result<uint64_t> get_page(const page_read& page, part_lengths rule) {
    auto bytes = std::shared_ptr<const std::vector<std::byte>>{};
    {
      const auto lock = std::scoped_lock{mutex_};
      if (const auto* found = use(page.key))
        bytes = found->bytes;
    }
    if (bytes == nullptr)
      return fail(ec::not_found);
    HICACHE_TRY(check_room(bytes->size(), total_bytes(page.parts), rule));
    scatter(bytes->data(), part_of<std::byte>(page.parts, 0, bytes->size()));
    return bytes->size();
  }

  result<void> set_page(const page_write& page) {
    const auto length = total_bytes(page.parts);
    if (max_bytes_ != 0 && length > max_bytes_)
      return fail(ec::store_full, "a page of " + format_bytes(length) + " does not fit into "
                                    + format_bytes(max_bytes_));
    {
      const auto lock = std::scoped_lock{mutex_};
      if (use(page.key) != nullptr)
        return {};
    }
    auto bytes = std::make_shared<std::vector<std::byte>>();
    bytes->reserve(length);
    for (const auto& part : page.parts)
      bytes->insert(bytes->end(), part.begin(), part.end());
    auto evicted = std::vector<lru_table<stored_page>::entry>{};
    auto watch = storage_backend::eviction_watch{};
    auto losses = storage_backend::loss_watch{};
    {
      const auto lock = std::scoped_lock{mutex_};
      if (use(page.key) != nullptr)
        return {};
      while (max_bytes_ != 0 && pages_.bytes() + length > max_bytes_) {
        evicted.push_back(pages_.pop_oldest());
        ++counters_.evicted;
      }
      pages_.insert(page.key, length,
                    {page.parent, page.tenant, page.fingerprint, std::move(bytes), clock_.now()});
      watch = watch_;
      losses = losses_;
    }
    tell(watch, losses, evicted);
    return {};
  }

  /// @pre the lock is held
  const stored_page* use(const page_key& key) {
    auto* found = pages_.touch(key);
    if (found != nullptr)
      found->used = clock_.now();
    return found;
  }

  static void tell(const storage_backend::eviction_watch& watch,
                   const storage_backend::loss_watch& losses,
                   std::span<const lru_table<stored_page>::entry> evicted) {
    if (evicted.empty())
      return;
    auto objects = std::vector<evicted_object>{};
    for (const auto& [key, bytes, value] : evicted)
      objects.push_back(
        {key, value.parent, *value.bytes, value.used, value.fingerprint, value.tenant});
    if (watch)
      watch(objects);
    if (losses)
      losses(objects.back().used);
  }

  const uint64_t max_bytes_;
  const clock_source& clock_;
  std::mutex mutex_; // Guards what follows.
  storage_backend::eviction_watch watch_;
  storage_backend::loss_watch losses_;
  lru_table<stored_page> pages_;
  backend_counters counters_;
};

} // namespace

std::unique_ptr<blocking_store> make_memory_backend(uint64_t max_bytes, const clock_source& clock) {
  return std::make_unique<memory_backend>(max_bytes, clock);
}

} // namespace hicache
