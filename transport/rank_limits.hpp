#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

/// Bounds of the agreement of ranks that mpirun did not start; those that are shared with others
/// are in base/limits.hpp.
namespace hicache::rank_limits {

/// Ranks of an instance: far more than an engine spreads one model over.
inline constexpr uint32_t ranks = 4096;

/// Values of one reduction. A step has some hundred, a report of 64 ranks some thousand; each rank
/// takes 128 KiB of shared memory per channel for them.
inline constexpr uint32_t values = 16384;

/// Connections of which rank 0 does not know yet whose they are, beside one of each rank. With
/// more, the oldest goes: a stranger that only connects keeps no rank out.
inline constexpr size_t unknown_peers = 64;

/// How long a peer may take to say who it is; a rank does so at once.
inline constexpr auto hello_time = std::chrono::seconds{10};

/// Connections of others that are told of in the log: a scan must not fill it.
inline constexpr uint64_t told_strangers = 16;

/// Bytes of a sentence that one rank sends to another.
inline constexpr size_t sentence_bytes = 4096;

/// When a rank on a host that is cut off counts as gone: as for the index (rpc/limits.hpp).
inline constexpr auto peer_silence = std::chrono::seconds{8};

/// Pause of a rank before it looks for rank 0 again.
inline constexpr auto connect_pause = std::chrono::milliseconds{50};

} // namespace hicache::rank_limits
