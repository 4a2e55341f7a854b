#pragma once

#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <string>

namespace hicache {

/// Parses the address of an HTTP server: HOST:PORT, or unix:PATH, a socket that only the server's
/// user can connect to.
/// @returns invalid_argument with a sentence that names the text
result<rpc::endpoint> parse_http_address(const std::string& text);

/// Opens a Unix socket that only this user can connect to. Replaces a stale socket file.
/// @returns the listening socket, or invalid_argument with a sentence that names the path
result<int> listen_on_unix_socket(const std::string& path);

/// @returns the connected socket, or -1
int connect_to_unix_socket(const std::string& path);

} // namespace hicache
