#pragma once

#include "base/error.hpp"
#include "transport/agreement.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

struct ssl_ctx_st;

namespace hicache {

/// A rank that something else than mpirun started, and where it finds the others.
struct socket_agreement_options {
  /// From 0, each of them once.
  uint32_t rank = 0;
  /// Ranks of the instance, equal on all.
  uint32_t size = 1;
  /// Where rank 0 waits for the others, for as long as not all are there: a name or number of its
  /// machine, with a port; or unix:PATH, if all ranks run on one.
  std::string host;
  uint16_t port = 0;
  /// Equal on all ranks of the instance; up to 63 bytes. Ranks of another job are refused.
  std::string job;
  /// Each side shows its certificate and checks the other's, as the context says. Null: in clear.
  std::shared_ptr<ssl_ctx_st> tls;
  /// How long to wait for the others.
  std::chrono::nanoseconds timeout{};
  /// What counts as one host, on which ranks share memory; this machine if empty. Up to 95 bytes.
  std::string machine;
};

/// The agreement of ranks that need no MPI. Collective: blocks until all ranks have come.
///
/// Ranks of one host share memory: a reduction among them takes no system call. Each rank has a
/// connection to rank 0 by which it learns at once when another one is gone, and over which hosts
/// reduce among themselves: the last rank of a host to enter sends the host's minima to rank 0,
/// which sends those of all to every rank. A thread of its own serves these connections.
///
/// Callbacks run inside `progress`, which has to be called for as long as it says so. Once a rank
/// is gone or its agreement destroyed, reductions that it has not entered end on all others with
/// `rank_unresponsive` and a sentence that names it, and so do all later ones. Vectors of unequal
/// length give every rank `configuration_mismatch`; longer ones than rank_limits::values
/// `limit_reached`. `missing` knows exactly which ranks of its own host have not arrived; of other
/// hosts, rank 0 knows which of them lack a rank.
/// @returns invalid_argument with a sentence for options that cannot be, or that rank 0 refuses
///          (another size or job, a rank that is there already); rank_unresponsive with a sentence
///          that says who has not come; io_failure if the system lacks memory or sockets
result<std::unique_ptr<agreement>> make_socket_agreement(const socket_agreement_options& options);

} // namespace hicache
