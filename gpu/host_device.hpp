#pragma once

#include "gpu/device.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <memory>

namespace hicache {

/// A device whose L1 is ordinary memory and whose copies are done by the CPU.
std::unique_ptr<device> make_host_device(copy_threads threads);

/// The copying of that device by itself: between two pools in memory that the CPU can reach, on the
/// caller's thread.
std::unique_ptr<page_mover> make_host_mover(const pool_geometry& l1, std::byte* l1_data,
                                            const pool_geometry& l2, std::byte* l2_data);

} // namespace hicache
