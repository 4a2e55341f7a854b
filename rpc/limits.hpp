#pragma once

#include "base/limits.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>

/// Bounds of this layer alone; those that it shares with other layers are in base/limits.hpp.
namespace hicache::rpc::limits {

/// 64-bit words of one message between processes: the longest value, and room for what the protocol
/// writes around it.
inline constexpr uint64_t message_words = hicache::limits::wire_words + 1024;

/// Levels of pointers in one message: values have four, the protocol writes as many around them.
inline constexpr int nesting = 16;

/// Words of requests of one connection that wait for their answers; no more is read from it
/// meanwhile. Some of the longest messages: who sends more waits for the answers anyway.
inline constexpr size_t flow_words = 8 * message_words;

/// Questions of one connection whose answers the peer has not let go of: each keeps its answer in
/// memory. Some times what a member has under way while it reports its pages.
inline constexpr size_t questions = 4096;

/// Bytes that wait for a peer to take them. Beyond it nothing more is read from the peer, so it is
/// exceeded by the answers to what was read before.
inline constexpr size_t unsent_bytes = size_t{4} << 20;

/// With so many bytes that it does not take a peer is closed: it asked for far more at once than
/// anybody who reads answers does.
inline constexpr size_t unsent_most_bytes = 16 * unsent_bytes;

/// Connections that a process serves: each member of the largest cluster, and as many that only
/// read or ask.
inline constexpr size_t connections = 2 * hicache::limits::index_members;

/// Connections of one process to a node: more than an engine has threads that would want their own,
/// and a quarter of the clients that a node takes, so that one that forgets to close them leaves
/// room for others.
inline constexpr size_t connections_of_process = 256;

/// Connections of another machine to a node, for the same reason; whose they are is not known here.
inline constexpr size_t connections_of_machine = connections_of_process;

/// Connections on which nothing was said yet. More than start at once, few enough that silent ones
/// do not use up the process's file descriptors.
inline constexpr size_t connections_unproven = 256;

/// How long a peer may take to say who it is, a handshake of TLS included.
inline constexpr auto handshake_time = std::chrono::seconds{10};

/// When a peer that is cut off is noticed, or one that does not take what it is sent: before the
/// index forgets a silent member (10 s by default), and after some lost packets.
inline constexpr auto peer_silence = std::chrono::seconds{8};

/// How long a connection may take until the peer has said who it is, and for how long an address
/// that failed is not tried again by who has something to send there.
inline constexpr auto connect_time = std::chrono::seconds{2};
inline constexpr auto connect_pause = std::chrono::seconds{1};

/// When an answer of another process is not waited for any more. Those who ask wait for less; this
/// frees what a request holds that nobody waits for.
inline constexpr auto answer_time = std::chrono::seconds{60};

/// Steps of work after which the loop looks for what came meanwhile: about twenty small requests. A
/// connection on which there is always something to read takes no more turns than that from the
/// others, from timers and from what other threads post.
inline constexpr unsigned steps_between_looks = 256;

/// Pause of who accepts connections when there are no descriptors left.
inline constexpr auto accept_pause = std::chrono::milliseconds{250};

} // namespace hicache::rpc::limits
