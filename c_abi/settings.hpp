#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace hicache {

/// The configuration of hc_open.
struct client_settings {
  /// Address of the node: unix:PATH or HOST:PORT.
  std::string node;
  /// Only for a node at HOST:PORT.
  tls_files tls;
  std::string pages_namespace;
  std::string tenant;
  size_t threads = 4;
  size_t calls = 1024;
  /// 0: as long as the node allows.
  std::chrono::milliseconds lease{};
};

/// Parses a configuration.
/// @returns invalid_argument with a sentence
result<client_settings> read_settings(std::string_view json);

} // namespace hicache
