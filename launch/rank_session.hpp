#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"
#include "runtime/rank_config.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace hicache {

/// This process in its instance: a rank that says by --rendezvous where it meets the others, a rank
/// under mpirun, or the only one. MPI is initialised in the second case alone.
struct rank_session {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  /// How this rank agrees with the others; the body takes it.
  std::unique_ptr<rank_reducer> peers;
};

/// `run_program` for programs that are ranks, with the flags of rank_place: all ranks check their
/// input before any goes on, and of those that refuse theirs the lowest says why, once for the
/// instance. Only flags that cannot be read end a rank with --rendezvous at once.
/// @param config Parsed from the flags of `app`; for TLS at the rendezvous.
/// @param check Looks at the input; local.
/// @param body Runs the rank; collective. Of the errors that it returns, ec::stopping means that
/// another rank says why, and rank_unresponsive ends the whole instance at once.
int run_rank_program(CLI::App& app, int argc, char** argv, const rank_config& config,
                     const std::function<result<void>(const rank_session&)>& check,
                     const std::function<result<int>(rank_session&)>& body);

} // namespace hicache
