#pragma once

#include "hicache/runtime.hpp"
#include "launch/rank_session.hpp"

#include <functional>

namespace hicache {

/// The program hicache-replay, an engine made of a trace: parses the flags, runs this process's
/// rank on real KV bytes, and writes the report. SPMD under mpirun, or one rank alone.
/// @param bring Asked for the extensions of the rank that this process runs, before it starts; may
/// put something around how the rank agrees with the others.
/// @returns the exit code.
int run_replay(int argc, char** argv,
               const std::function<rank_extensions(rank_session&)>& bring = {});

} // namespace hicache
