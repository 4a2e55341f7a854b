#pragma once

#include "gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace hicache {

/// A CUDA device, chosen as make_device() says.
/// @param wanted Its number; nothing to choose one.
/// @param pool An address in the engine's L1 pool, or 0.
/// @returns unsupported if no device can be used; invalid_argument if the wanted one does not exist
/// or the pool does not lie on it.
result<std::unique_ptr<device>> make_cuda_device(std::optional<uint32_t> wanted = {},
                                                 uint64_t pool = 0);

} // namespace hicache
