#include "bench/transfer_startup.hpp"

#include "base/try.hpp"
#include "bench/transfer_memory.hpp"
#include "launch/transfer_measure.hpp"
#include "launch/transfer_probe.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

namespace hicache {

namespace {

using std::chrono::steady_clock;

constexpr auto least_rounds = size_t{9};

/// Page size of the machine, or a divisor of it.
constexpr auto page_bytes = uint64_t{4096};

/// Maps new memory and touches it with `threads` threads. @returns seconds without unmapping
result<double> touch_new_memory(uint64_t bytes, uint32_t threads) {
  const auto begin = steady_clock::now();
  const auto memory = HICACHE_TRY(map_new_memory(bytes));
  const auto mapped = std::chrono::duration<double>(steady_clock::now() - begin).count();
  auto* data = memory.data();
  const auto touching = HICACHE_TRY(share_out(bytes, threads, [data](uint64_t from, uint64_t to) {
    for (auto at = from; at < to; at += page_bytes)
      *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }));
  return mapped + touching;
}

/// Number of threads that an allocation may use; see host_mapping.
uint32_t allocation_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
}

result<double> get_new_memory([[maybe_unused]] const device& where, uint64_t bytes) {
#ifdef HICACHE_HAVE_CUDA
  if (!where.host_addressable())
    return register_new_memory(bytes);
#endif
  return touch_new_memory(bytes, allocation_threads());
}

} // namespace

result<unique_mapping> map_new_memory(uint64_t bytes) {
  auto memory = unique_mapping::create(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (!memory)
    return fail(ec::io_failure, "cannot map new memory: " + std::generic_category().message(errno));
  // Best effort: kernels without huge pages use normal ones.
  static_cast<void>(::madvise(memory.data(), bytes, MADV_HUGEPAGE));
  return memory;
}

result<startup_figures> measure_startup(device_kind kind, uint64_t bytes, double seconds) {
  auto where = HICACHE_TRY(make_device(kind));
  auto ours = std::vector<double>{};
  auto baseline = std::vector<double>{};
  auto one_thread = std::vector<double>{};
  const auto begin = steady_clock::now();
  while (ours.size() < least_rounds || seconds_since(begin) < seconds) {
    const auto fresh = HICACHE_TRY(get_new_memory(*where, bytes));
    const auto before = steady_clock::now();
    const auto memory = HICACHE_TRY(where->allocate_host(bytes, {}));
    ours.push_back(seconds_since(before));
    const auto touched = HICACHE_TRY(touch_new_memory(bytes, 1));
    baseline.push_back(fresh);
    one_thread.push_back(touched);
  }
  return startup_figures{median(ours), median(baseline), median_ratio(ours, baseline),
                         median(one_thread), median_ratio(ours, one_thread)};
}

std::string driver_version([[maybe_unused]] device_kind kind) {
#ifdef HICACHE_HAVE_CUDA
  if (kind != device_kind::host)
    return cuda_driver_version();
#endif
  return "none";
}

} // namespace hicache
