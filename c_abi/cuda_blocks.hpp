#pragma once

#include "c_abi/block_device.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <memory>

namespace hicache {

/// Blocks in the memory of a CUDA device, in its primary context, which the CUDA runtime uses too.
/// Copies run on two streams of its own, one for each direction. The driver is loaded with the
/// first call.
/// @returns unsupported if there is no driver or no such device; io_failure
result<std::unique_ptr<block_device>> open_cuda_blocks(int32_t number);

} // namespace hicache
