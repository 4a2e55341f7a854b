#pragma once

#include "hicache/error.hpp"
#include "launch/transfer_probe.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

/// A probe of the first CUDA device: its copy hardware, and a kernel that keeps every SM busy.
/// @param target Its L2 memory is pinned.
result<std::unique_ptr<transfer_probe>> make_cuda_probe(probe_target target);

/// Maps new memory and pins it with a single call.
/// @returns seconds, giving back not included
result<double> register_new_memory(uint64_t bytes);

/// "13.0": what the installed driver supports.
std::string cuda_driver_version();

} // namespace hicache
