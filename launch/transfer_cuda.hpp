#pragma once

#include "hicache/error.hpp"
#include "launch/transfer_probe.hpp"

#include <memory>

namespace hicache {

/// Probe of the first CUDA device: copies by its copy hardware, computes with a kernel that keeps
/// every SM busy.
/// @param target Its L2 memory is pinned.
result<std::unique_ptr<transfer_probe>> make_cuda_probe(probe_target target);

} // namespace hicache
