#pragma once

#include "gpu/device.hpp"

#include <memory>

namespace hicache {

/// The first GPU that the CUDA runtime offers (CUDA_VISIBLE_DEVICES chooses). Present only in
/// builds with CUDA.
/// @returns unsupported, with a sentence, if no GPU can be used.
result<std::unique_ptr<device>> make_cuda_device(copy_threads threads);

} // namespace hicache
