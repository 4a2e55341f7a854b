#pragma once

#include "backends/blocking_store.hpp"
#include "backends/page_folder.hpp"
#include "hicache/storage_backend.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>

namespace hicache::test {

/// What goes wrong with a store, as shares of the pages that it is called for. What befalls a page
/// depends on nothing but the seed, the rank, the page, and how often it was asked for in this way.
struct fault_plan {
  uint64_t seed = 0;
  uint32_t rank = 0;
  /// The folder of the file backend whose pages are damaged.
  std::string folder;
  /// A call for the page takes up to `delay_ms_max` longer.
  double delay = 0;
  uint32_t delay_ms_max = 20;
  /// A call for the page never returns.
  double stick = 0;
  /// A get, set or remove fails.
  double fail = 0;
  /// A page that was stored is cut short in its file.
  double cut = 0;
  /// One bit of a page that was stored turns over in its file: of its header or of its bytes.
  double flip = 0;
  /// A page is removed just before it is read.
  double lose = 0;
  /// `exists` answers the opposite.
  double lie = 0;
};

/// How often each happened.
struct fault_counters {
  std::atomic<uint64_t> delays = 0;
  std::atomic<uint64_t> failures = 0;
  std::atomic<uint64_t> cuts = 0;
  std::atomic<uint64_t> flips = 0;
  std::atomic<uint64_t> losses = 0;
  std::atomic<uint64_t> lies = 0;
};

/// A file backend in which things go wrong by a plan. The damage is done to the files, below the
/// checksums, so finding it out is the file backend's own work. Says at its end, on standard error,
/// what it did: `faults of rank 2: {"seed":7,"delays":10,...}`. It has no end if a call sticks.
class faulty_backend final : public blocking_store {
public:
  /// @param inner A file backend on the plan's folder.
  faulty_backend(std::unique_ptr<blocking_store> inner, page_folder folder, fault_plan plan);

  ~faulty_backend() override;

  std::string name() const override;

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override;

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override;

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override;

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override;

  backend_health health() override;

private:
  enum class call : uint32_t { exists, get, set, remove };

  /// The source of what befalls this page this time.
  std::mt19937_64 draw(const page_key& key, call which);

  /// Sticks or waits, perhaps; then fails, perhaps.
  result<void> disturb(std::mt19937_64& random, call which);

  void damage(std::mt19937_64& random, const page_key& key);

  const std::unique_ptr<blocking_store> inner_;
  const page_folder folder_;
  const fault_plan plan_;
  fault_counters counters_;
  std::mutex mutex_; // Guards what follows.
  std::map<std::pair<page_key, call>, uint32_t> attempts_;
};

} // namespace hicache::test
