#pragma once

#include "gpu/device.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <memory>

namespace hicache {

/// A device with L1 in ordinary memory whose copies run on the CPU.
std::unique_ptr<device> make_host_device();

/// The mover of that device, between two pools in CPU-accessible memory. begin() only stores the
/// pages; finish_layer() copies, with host_threads - 1 helpers, which may be layers ahead.
/// @param l2_data The memory of l2.
/// @pre l1.check() succeeds and both pools have the same shape
std::unique_ptr<page_mover> make_host_mover(const device_layers& l1, const pool_geometry& l2,
                                            std::byte* l2_data, const copy_options& options);

} // namespace hicache
