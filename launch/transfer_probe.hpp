#pragma once

#include "base/immovable.hpp"
#include "cache/copy_strips.hpp"
#include "gpu/queued_copy_engine.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"
#include "hicache/operations.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
class transfer_probe : immovable {
public:
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

/// Splits `bytes` bytes into equal parts of whole machine pages, one for each of `threads` threads.
/// @param work Takes the begin and the end of a part.
/// @returns seconds from the start of all threads to the end of the last
result<double> share_out(uint64_t bytes, uint32_t threads,
                         const std::function<void(uint64_t, uint64_t)>& work);

/// Copies with memcpy and computes by busy-waiting on the caller's thread.
std::unique_ptr<transfer_probe> make_host_probe(probe_target target);

} // namespace hicache
