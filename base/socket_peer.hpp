#pragma once

#include <sys/types.h>

#include <optional>

namespace hicache {

/// A process at the other end of a Unix socket, as it was when it connected or began to listen.
struct socket_peer {
  uid_t user = 0;
  /// 0 if this process cannot see it, as one in a container of its own.
  pid_t id = 0;
};

/// @returns nothing if the system does not say who it is
std::optional<socket_peer> socket_peer_of(int socket) noexcept;

/// Whether a process at the other end of a Unix socket is of this process's user or, if a group is
/// named, of that: by its own group or one of its supplementary groups.
bool is_of_own_user_or(std::optional<gid_t> group, int socket);

} // namespace hicache
