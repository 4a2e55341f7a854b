#pragma once

#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <string>

namespace hicache {

/// Address of an HTTP server: TCP, or a Unix socket that only the server's user can connect to.
struct http_address {
  rpc::endpoint where;
  /// Empty for TCP.
  std::string socket_path;

  bool is_unix() const noexcept { return !socket_path.empty(); }
};

/// Parses HOST:PORT or unix:PATH.
/// @returns invalid_argument with a sentence that names the text
/// @relates http_address
result<http_address> parse_http_address(const std::string& text);

/// @relates http_address
std::string to_string(const http_address& address);

/// Opens a Unix socket that only this user can connect to. Replaces a stale socket file.
/// @returns the listening socket, or invalid_argument with a sentence that names the path
result<int> listen_on_unix_socket(const std::string& path);

/// @returns the connected socket, or -1
int connect_to_unix_socket(const std::string& path);

} // namespace hicache
