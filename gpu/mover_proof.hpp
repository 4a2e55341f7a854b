#pragma once

#include "gpu/device.hpp"
#include "gpu/queued_copy_engine.hpp"
#include "hicache/geometry.hpp"

namespace hicache {

/// Fills both pools with random bytes, stores and loads pages 1 to 3, and compares every byte of
/// both with the same copies done by the CPU (gpu/copy_piece.hpp).
/// @param l1_pool The pool at the start of l1_memory, at least four pages.
/// @param l2_pool The one at the start of l2_memory.
/// @pre the mover works on these two memories and nothing is in flight
/// @returns copy_failed if a byte differs
result<void> prove_mover(page_mover& mover, const pool_geometry& l1_pool, device_memory& l1_memory,
                         const pool_geometry& l2_pool, device_memory& l2_memory);

} // namespace hicache
