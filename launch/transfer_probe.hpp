#pragma once

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

/// What a probe copies: as much as the measured engine does in one submission.
struct probe_target {
  /// Memory of the probe's own, of the same kinds as the pools: one block on each side.
  std::byte* l1 = nullptr;
  std::byte* l2 = nullptr;
  /// Of each block.
  uint64_t bytes = 0;
  /// How the engine's pools correspond, and the pages that it copies.
  std::vector<copy_strip> strips;
  std::vector<page_index> l1_pages;
  std::vector<page_index> l2_pages;
  /// Threads that copy on the host device.
  uint32_t threads = 1;
};

/// What the copies of one kind of device are compared with, and a computation that waits for their
/// layers. The memory of its target must outlive it. One thread at a time; errors are io_failure or
/// copy_failed with a sentence.
class transfer_probe {
public:
  transfer_probe() = default;
  transfer_probe(const transfer_probe&) = delete;
  transfer_probe& operator=(const transfer_probe&) = delete;
  virtual ~transfer_probe() = default;

  /// Copies the probe's own block in one piece, the fastest way that the device offers.
  /// @returns seconds
  virtual result<double> copy_whole(copy_direction direction) = 0;

  /// Copies the engine's pages with one call of the device per page and strip, as a program would
  /// that knows nothing of joining and gathering.
  /// @returns seconds, or 0 where that is no other way of copying
  virtual result<double> copy_by_page(copy_direction direction) = 0;

  /// Computes layer after layer, each for `per_layer` and not before it has arrived, and returns
  /// after the last. On a GPU nothing but the stream of the computation waits for a layer.
  virtual result<void> compute(const layer_progress& progress, std::chrono::nanoseconds per_layer)
    = 0;
};

/// Copies with memcpy, and computes by keeping the caller's thread busy.
std::unique_ptr<transfer_probe> make_host_probe(probe_target target);

/// Memory fresh from the kernel, in which nothing was touched yet; unmapped with the object.
/// Transparent huge pages are asked for, as whoever is in a hurry would. Move-only.
class new_mapping {
public:
  /// @returns io_failure with a sentence.
  static result<new_mapping> create(uint64_t bytes);

  new_mapping(new_mapping&& other) noexcept;

  new_mapping& operator=(new_mapping&&) = delete;

  ~new_mapping();

  std::byte* data() const noexcept { return data_; }

private:
  new_mapping(std::byte* data, uint64_t bytes) noexcept : data_(data), bytes_(bytes) {}

  std::byte* data_;
  uint64_t bytes_;
};

/// Maps new memory and has `threads` threads touch it.
/// @returns seconds, unmapping not included
result<double> touch_new_memory(uint64_t bytes, uint32_t threads);

} // namespace hicache
