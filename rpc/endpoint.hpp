#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace hicache::rpc {

/// An address to listen on or connect to: HOST:PORT with IPv6 addresses in brackets, or unix:PATH,
/// a socket in the file system.
struct endpoint {
  /// Without brackets; unix:PATH as a whole.
  std::string host;
  uint16_t port = 0;

  bool is_path() const noexcept { return host.starts_with("unix:"); }

  /// @pre is_path()
  std::string path() const { return host.substr(5); }
};

/// @returns invalid_argument with a sentence that quotes the text.
/// @relates endpoint
result<endpoint> parse_endpoint(const std::string& text);

/// Parses HOST:PORT,HOST:PORT...
/// @returns invalid_argument with a sentence that quotes the invalid part.
/// @relates endpoint
result<std::vector<endpoint>> parse_endpoints(const std::string& text);

/// @relates endpoint
std::string to_string(const endpoint& where);

} // namespace hicache::rpc
