#pragma once

#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace hicache {

/// What --index and --join take, for help; see backends/cluster/index_place.hpp.
inline constexpr auto index_place_type = "HOST:PORT[,...]|srv://NAME|etcd://HOST:PORT/PREFIX";

/// Adds --tls-cert, --tls-key and --tls-ca.
void add_tls_flags(CLI::App& app, tls_files& tls);

/// True if only this machine reaches the host, by its name or number: localhost, ::1, 127.*.
bool is_loopback(const std::string& host) noexcept;

/// Whether a port may be opened: on an address that other machines reach, with TLS or with
/// --insecure.
/// @param flag The one that gave the host.
/// @returns invalid_argument with one sentence that names both
result<void> check_listening(const std::string& flag, const std::string& host, const tls_files& tls,
                             bool insecure);

} // namespace hicache
