#pragma once

#include "c_abi/block_device.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <memory>

namespace hicache {

/// Blocks in the memory of a CUDA device, in its primary context, which the CUDA runtime shares.
/// Copies run on two private streams, one per direction. Loads the driver dynamically.
/// @returns unsupported if there is no driver or no such device; io_failure
result<std::unique_ptr<block_device>> open_cuda_blocks(int32_t number);

} // namespace hicache
