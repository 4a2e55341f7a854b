#pragma once

#include "hicache/runtime.hpp"
#include "launch/rank_session.hpp"

#include <functional>

namespace hicache {

/// Main function of hicache-replay, an engine that replays a trace: parses the flags, runs this
/// process's rank on real KV bytes, and writes the report. SPMD under mpirun, or a single rank.
/// @param bring Called before the rank starts; returns its extensions, may decorate its reducer.
/// @returns the exit code
int run_replay(int argc, char** argv,
               const std::function<rank_extensions(rank_session&)>& bring = {});

} // namespace hicache
