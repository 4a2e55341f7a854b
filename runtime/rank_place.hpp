#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"
#include "runtime/rank_config.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace hicache {

/// Which rank of its instance this process is, where something else than mpirun started it.
struct rank_place {
  /// Absent: RANK and WORLD_SIZE of the environment say it, as torchrun sets them.
  std::optional<uint32_t> rank;
  std::optional<uint32_t> ranks;
  /// Where the ranks meet: HOST:PORT or unix:PATH. Empty: they do not, and nothing of this counts.
  std::string rendezvous;
  std::string job;

  /// How this rank finds the others.
  /// @param config For TLS; need not be finished.
  /// @returns invalid_argument with one sentence that names the flag
  /// @pre rendezvous is given
  result<socket_reducer_options> options(const rank_config& config) const;
};

/// Adds --rank, --ranks, --rendezvous and --job.
void add_place_flags(CLI::App& app, rank_place& place);

} // namespace hicache
