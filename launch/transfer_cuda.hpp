#pragma once

#include "hicache/error.hpp"
#include "launch/transfer_probe.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

/// Probe of the first CUDA device: copies by its copy hardware, computes with a kernel that keeps
/// every SM busy.
/// @param target Its L2 memory is pinned.
result<std::unique_ptr<transfer_probe>> make_cuda_probe(probe_target target);

/// Maps new memory and pins it with a single call.
/// @returns seconds, unmapping excluded
result<double> register_new_memory(uint64_t bytes);

/// Version supported by the installed driver, such as "13.0".
std::string cuda_driver_version();

} // namespace hicache
