#pragma once

#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace hicache {

/// Type of --index and --join in help; see backends/cluster/index_place.hpp.
inline constexpr auto index_place_type = "HOST:PORT[,...]|srv://NAME|etcd://HOST:PORT/PREFIX";

/// Adds --index.
void add_index_flag(CLI::App& app, std::string& index);

/// Adds --tls-cert, --tls-key and --tls-ca.
void add_tls_flags(CLI::App& app, tls_files& tls);

/// True if `host` is a loopback name or address: localhost, ::1, 127.*.
bool is_loopback(const std::string& host) noexcept;

/// The name of this machine; empty if it tells none.
std::string machine_name();

/// Checks that an address reachable from other machines is used only with TLS or --insecure.
/// @param flag The flag that set the host.
/// @returns invalid_argument with one sentence that names both
result<void> check_listening(const std::string& flag, const std::string& host, const tls_files& tls,
                             bool insecure);

} // namespace hicache
