#pragma once

#include <sys/types.h>

#include <optional>

namespace hicache {

/// Process at the other end of a Unix socket, as of its connect or listen.
struct socket_peer {
  uid_t user = 0;
  /// 0 if invisible to this process, as in another container.
  pid_t id = 0;
};

/// @returns nothing if the system does not provide the credentials
std::optional<socket_peer> socket_peer_of(int socket) noexcept;

/// Whether the peer of a Unix socket runs as this process's user or, if a group is given, belongs
/// to that group (primary or supplementary).
bool is_of_own_user_or(std::optional<gid_t> group, int socket);

} // namespace hicache
