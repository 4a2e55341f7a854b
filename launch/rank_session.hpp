#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"
#include "runtime/rank_config.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace hicache {

/// This process within its instance: a rank with --rendezvous, a rank under mpirun, or a single
/// rank. MPI is initialised only in the second case.
struct rank_session {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  /// Reducer shared with the other ranks; the body takes it.
  std::unique_ptr<rank_reducer> peers;
};

/// `run_program` for programs that are ranks, with the flags of rank_place. All ranks check their
/// input before any continues; of the ranks that reject theirs, the lowest reports why, once for
/// the instance. With --rendezvous, flags that cannot be parsed end only this rank, at once.
/// @param config Parsed from the flags of `app`; supplies TLS for the rendezvous.
/// @param check Checks the input; local.
/// @param body Runs the rank; collective. If it returns ec::stopping, another rank reports why;
/// rank_unresponsive ends the whole instance at once.
int run_rank_program(CLI::App& app, int argc, char** argv, const rank_config& config,
                     const std::function<result<void>(const rank_session&)>& check,
                     const std::function<result<int>(rank_session&)>& body);

} // namespace hicache
