#pragma once

#include "gpu/device.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <memory>

namespace hicache {

/// A device whose L1 is ordinary memory and whose copies are done by the CPU.
std::unique_ptr<device> make_host_device();

/// The copying of that device by itself, between two pools in memory that the CPU can reach.
/// begin() only notes the pages; finish_layer() copies, on its caller's thread and host_threads - 1
/// more, which may be layers ahead of it.
/// @param l2_data The memory of l2.
/// @pre l1.check() succeeds and both pools have the same shape
std::unique_ptr<page_mover> make_host_mover(const device_layers& l1, const pool_geometry& l2,
                                            std::byte* l2_data, const copy_options& options);

} // namespace hicache
