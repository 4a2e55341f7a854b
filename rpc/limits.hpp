#pragma once

#include "base/limits.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>

/// Bounds of this layer; those shared with other layers are in base/limits.hpp.
namespace hicache::rpc::limits {

/// 64-bit words of one message between processes: the longest value plus protocol overhead.
inline constexpr uint64_t message_words = hicache::limits::wire_words + 1024;

/// Pointer depth of one message: values have four levels, the protocol adds as many.
inline constexpr int nesting = 16;

/// Words of unanswered requests on one connection, beyond which it is not read. Fits several of the
/// longest messages; peers that send more wait for answers anyway.
inline constexpr size_t flow_words = 8 * message_words;

/// Unfinished questions of one connection; each keeps its answer in memory. Several times what a
/// member has in flight during a block report.
inline constexpr size_t questions = 4096;

/// Bytes queued for a peer. Beyond it the peer is not read, so only answers to earlier requests
/// exceed it.
inline constexpr size_t unsent_bytes = size_t{4} << 20;

/// Queued bytes at which a peer is closed: no peer that reads its answers requests that much at
/// once.
inline constexpr size_t unsent_most_bytes = 16 * unsent_bytes;

/// Connections that a process serves: one per member of the largest cluster, and as many for
/// readers and operators.
inline constexpr size_t connections = 2 * hicache::limits::index_members;

/// Connections of one process to a node: more than the threads of an engine that use their own, and
/// a quarter of the clients that a node accepts, so a process that leaks connections leaves room
/// for others.
inline constexpr size_t connections_of_process = 256;

/// Connections of another machine to a node, for the same reason; the processes behind them are
/// unknown here.
inline constexpr size_t connections_of_machine = connections_of_process;

/// Connections without a greeting: more than ever start at once, few enough that silent ones do not
/// exhaust file descriptors.
inline constexpr size_t connections_unproven = 256;

/// Time for a peer's greeting, including the TLS handshake.
inline constexpr auto handshake_time = std::chrono::seconds{10};

/// When an unreachable peer, or one that does not read, is detected: before the index drops a
/// silent member (10 s by default), but only after some lost packets.
inline constexpr auto peer_silence = std::chrono::seconds{8};

/// Timeout of a connection up to the peer's greeting, and how long requests to a failed address
/// fail without a new attempt.
inline constexpr auto connect_time = std::chrono::seconds{2};
inline constexpr auto connect_pause = std::chrono::seconds{1};

/// Timeout for an answer of another process. Callers use shorter ones; this frees the state of
/// requests they have abandoned.
inline constexpr auto answer_time = std::chrono::seconds{60};

/// Steps between checks for I/O, about twenty small requests. Bounds how long a connection with
/// constant input delays other connections, timers and work posted by other threads.
inline constexpr unsigned steps_between_looks = 256;

/// Delay before accepting again after running out of file descriptors.
inline constexpr auto accept_pause = std::chrono::milliseconds{250};

} // namespace hicache::rpc::limits
