#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

/// Limits of rank reductions over sockets (ranks not started by mpirun); see also base/limits.hpp.
namespace hicache::rank_limits {

/// Ranks of an instance: far more than an engine spreads one model over.
inline constexpr uint32_t ranks = 4096;

/// Values of one reduction. A step has some hundred, a report of 64 ranks some thousand; a rank
/// takes 128 KiB of shared memory per channel for them.
inline constexpr uint32_t values = 16384;

/// Unidentified connections at rank 0, besides one of each rank. Beyond that the oldest is closed,
/// so idle strangers keep no rank out.
inline constexpr size_t unknown_peers = 64;

/// How long a peer may take to identify itself; a rank does so at once.
inline constexpr auto hello_time = std::chrono::seconds{10};

/// Foreign connections that are logged; bounded so that a port scan does not fill the log.
inline constexpr uint64_t told_strangers = 16;

/// Bytes of a sentence sent between ranks.
inline constexpr size_t sentence_bytes = 4096;

/// When a rank on an unreachable host counts as gone; the same for the index (rpc/limits.hpp).
inline constexpr auto peer_silence = std::chrono::seconds{8};

/// Pause before a rank tries to reach rank 0 again.
inline constexpr auto connect_pause = std::chrono::milliseconds{50};

} // namespace hicache::rank_limits
