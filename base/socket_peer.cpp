#include "base/socket_peer.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace hicache {

namespace {

std::optional<ucred> credentials_of(int socket) noexcept {
  auto credentials = ucred{};
  auto length = socklen_t{sizeof(credentials)};
  const auto got = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  return got == 0 ? std::optional{credentials} : std::nullopt;
}

bool is_in_group(int socket, gid_t group) {
  // Without a buffer the call fails and reports the required size.
  auto length = socklen_t{0};
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, nullptr, &length) == 0)
    return false;
  auto groups = std::vector<gid_t>(length / sizeof(gid_t));
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0
         && std::ranges::find(groups, group) != groups.end();
}

} // namespace

std::optional<socket_peer> socket_peer_of(int socket) noexcept {
  const auto credentials = credentials_of(socket);
  if (!credentials)
    return std::nullopt;
  return socket_peer{credentials->uid, credentials->pid};
}

bool is_of_own_user_or(std::optional<gid_t> group, int socket) {
  const auto credentials = credentials_of(socket);
  return credentials
         && (credentials->uid == ::geteuid()
             || (group && (credentials->gid == *group || is_in_group(socket, *group))));
}

} // namespace hicache
