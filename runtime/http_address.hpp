#pragma once

#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <string>

namespace hicache {

/// Where an HTTP server listens: a TCP address, or a Unix socket that only the server's user can
/// connect to.
struct http_address {
  /// The TCP address, if `socket_path` is empty.
  rpc::endpoint where;
  /// The path of the Unix socket.
  std::string socket_path;

  bool is_unix() const noexcept { return !socket_path.empty(); }
};

/// HOST:PORT or unix:PATH.
/// @returns invalid_argument with a sentence that names the text.
/// @relates http_address
result<http_address> parse_http_address(const std::string& text);

/// @relates http_address
std::string to_string(const http_address& address);

/// Opens a Unix socket at `path` that only this user can connect to. Replaces a socket that nobody
/// listens on any more.
/// @returns the listening socket, or invalid_argument with a sentence that names the path
result<int> listen_on_unix_socket(const std::string& path);

/// @returns the connected socket, or -1
int connect_to_unix_socket(const std::string& path);

} // namespace hicache
