#pragma once

#include "gpu/device.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace hicache {

/// The part of a copy engine that differs between devices. Called by at most one thread per
/// direction at a time; pages were checked before.
class page_mover {
public:
  page_mover() = default;
  page_mover(const page_mover&) = delete;
  page_mover& operator=(const page_mover&) = delete;
  virtual ~page_mover() = default;

  /// Copies L1 -> L2 and returns when all bytes have arrived.
  virtual result<void> store(std::span<const page_index> device_pages,
                             std::span<const page_index> host_pages)
    = 0;

  /// Called with the number of layers that have arrived, counted from layer 0.
  using layer_callback = std::function<void(uint32_t)>;

  /// Copies L2 -> L1 layer by layer, tells `arrived` after each, and returns when all bytes have
  /// arrived.
  virtual result<void> load(std::span<const page_index> host_pages,
                            std::span<const page_index> device_pages, const layer_callback& arrived)
    = 0;
};

/// A copy engine that queues operations in front of a mover.
/// @pre the conditions of device::make_copy_engine on the geometries
std::unique_ptr<copy_engine> make_queued_copy_engine(const pool_geometry& l1,
                                                     const pool_geometry& l2,
                                                     std::unique_ptr<page_mover> mover,
                                                     copy_threads threads);

} // namespace hicache
