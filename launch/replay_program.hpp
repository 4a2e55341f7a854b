#pragma once

#include "backends/storage_backend.hpp"

namespace hicache {

/// The program hicache-replay, an engine made of a trace: parses the flags, runs this process's
/// rank on real KV bytes, and writes the report. SPMD under mpirun, or one rank alone.
/// @param wrap Around the store that the flags name; see backend_wrapper.
/// @returns the exit code.
int run_replay(int argc, char** argv, const backend_wrapper& wrap = {});

} // namespace hicache
