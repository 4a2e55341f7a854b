#pragma once

#include "base/unique_mapping.hpp"
#include "cache/copy_strips.hpp"
#include "gpu/queued_copy_engine.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"
#include "hicache/operations.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

/// What a probe copies: the same as the measured engine in one submission.
struct probe_target {
  /// The probe's own memory, one block per side, of the same kinds as the pools.
  std::byte* l1 = nullptr;
  std::byte* l2 = nullptr;
  /// Size of each block.
  uint64_t bytes = 0;
  /// Strips that map the engine's pools to each other, and the pages it copies.
  std::vector<copy_strip> strips;
  std::vector<page_index> l1_pages;
  std::vector<page_index> l2_pages;
  /// Copying threads of the host device.
  uint32_t threads = 1;
};

/// Baseline copies of one kind of device, and a computation that waits for their layers. Its
/// target's memory must outlive it. One thread at a time; errors are io_failure or copy_failed with
/// a sentence.
class transfer_probe {
public:
  transfer_probe() = default;
  transfer_probe(const transfer_probe&) = delete;
  transfer_probe& operator=(const transfer_probe&) = delete;
  virtual ~transfer_probe() = default;

  /// Copies the probe's block in one piece, the device's fastest way. @returns seconds
  virtual result<double> copy_whole(copy_direction direction) = 0;

  /// Copies the engine's pages with a call per page and strip, without merging or gathering.
  /// @returns seconds, or 0 if the device has no such way of copying
  virtual result<double> copy_by_page(copy_direction direction) = 0;

  /// Computes layer by layer, each for `per_layer` and after it has arrived; returns after the
  /// last. On a GPU only the stream of the computation waits for a layer.
  virtual result<void> compute(const layer_progress& progress, std::chrono::nanoseconds per_layer)
    = 0;
};

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Copies with memcpy and computes by busy-waiting on the caller's thread.
std::unique_ptr<transfer_probe> make_host_probe(probe_target target);

/// Maps fresh, untouched memory with transparent huge pages.
/// @returns io_failure with a sentence
result<unique_mapping> map_new_memory(uint64_t bytes);

/// Maps new memory and touches it with `threads` threads. @returns seconds without unmapping
result<double> touch_new_memory(uint64_t bytes, uint32_t threads);

} // namespace hicache
