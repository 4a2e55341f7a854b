#pragma once

#include "gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace hicache {

/// Opens a CUDA device, chosen as make_device() describes.
/// @param wanted Its number; empty to choose one.
/// @param pool An address in the engine's L1 pool, or 0.
/// @returns unsupported if no device is usable; invalid_argument if `wanted` does not exist or the
/// pool is elsewhere.
result<std::unique_ptr<device>> make_cuda_device(std::optional<uint32_t> wanted = {},
                                                 uint64_t pool = 0);

} // namespace hicache
