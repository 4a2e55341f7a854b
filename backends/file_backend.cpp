#include "backends/file_backend.hpp"

#include "base/try.hpp"

#include <utility>

namespace hicache {

namespace {

class file_backend final : public blocking_store {
public:
  file_backend(std::unique_ptr<page_files> files, std::optional<uint64_t> fingerprint)
    : files_(std::move(files)), fingerprint_(fingerprint) {}

  std::string name() const override { return "file"; }

  store_capabilities capabilities() const override {
    return {
      .survives_restarts = true, .is_shared = true, .tells_occupancy = true, .preferred_batch = 32};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    return files_->exists(keys, deadline);
  }

  bool tells_lengths() const override { return true; }

  std::vector<result<uint64_t>> read(std::span<const page_read> pages, part_lengths rule,
                                     time_point deadline) override {
    return files_->read(pages, fingerprint_, rule, deadline);
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return files_->set(pages, fingerprint_.value(), deadline);
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    return files_->remove(keys, deadline);
  }

  /// @returns false: other processes evict from the folder, too
  bool watch_evictions(storage_backend::eviction_watch watch, bool) override {
    files_->watch_evictions(std::move(watch));
    return false;
  }

  result<object_list> list(const std::string& from, time_point deadline) override {
    return files_->list(from, deadline);
  }

  backend_health health() override { return files_->health(); }

private:
  const std::unique_ptr<page_files> files_;
  const std::optional<uint64_t> fingerprint_;
};

} // namespace

result<std::unique_ptr<blocking_store>> make_file_backend(const file_backend_options& options,
                                                          const clock_source& clock) {
  auto files = HICACHE_TRY(page_files::open(options.files, clock));
  return std::make_unique<file_backend>(std::move(files), options.fingerprint);
}

} // namespace hicache
