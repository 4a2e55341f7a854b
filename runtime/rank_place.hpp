#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"
#include "runtime/rank_config.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace hicache {

/// This process's rank within its instance, if it was not started by mpirun.
struct rank_place {
  /// If absent, read from RANK and WORLD_SIZE in the environment, as set by torchrun.
  std::optional<uint32_t> rank;
  std::optional<uint32_t> ranks;
  /// Rendezvous of the ranks: HOST:PORT or unix:PATH. Empty: none, and the other fields are unused.
  std::string rendezvous;
  std::string job;

  /// Options for connecting to the other ranks.
  /// @param config Supplies TLS; need not be finished.
  /// @returns invalid_argument with one sentence that names the flag
  /// @pre rendezvous is given
  result<socket_reducer_options> options(const rank_config& config) const;
};

/// Adds --rank, --ranks, --rendezvous and --job.
void add_place_flags(CLI::App& app, rank_place& place);

} // namespace hicache
