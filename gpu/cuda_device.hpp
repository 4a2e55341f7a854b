#pragma once

#include "gpu/device.hpp"

#include <memory>

namespace hicache {

/// The first CUDA device.
/// @returns unsupported if there is none or it cannot be used.
result<std::unique_ptr<device>> make_cuda_device();

} // namespace hicache
