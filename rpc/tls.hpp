#pragma once

#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>

namespace hicache {

using tls_context = std::shared_ptr<SSL_CTX>;

/// Which certificates signed by the authority are accepted.
enum class tls_peers : uint8_t {
  /// Clients may have any role; servers must be members.
  cluster,
  /// The ranks of one instance: certificates with this process's rights.
  ranks,
};

/// Loads the files. Both sides of a connection must present a certificate signed by the authority.
/// @returns invalid_argument with one sentence that names the flag and the file
/// @pre files.given()
result<tls_context> load_tls(const tls_files& files, tls_peers peers = tls_peers::cluster);

/// The context for new connections. Reloads replaced files; keeps the previous context if that
/// fails. One thread.
class tls_source {
public:
  explicit tls_source(tls_files files) : files_(std::move(files)) {}

  bool is_used() const noexcept { return files_.given(); }

  /// @returns like load_tls if the files have never been loaded
  /// @pre is_used()
  result<tls_context> get();

private:
  /// Identifies a version of the files.
  using stamp = std::array<uint64_t, 12>;

  stamp look() const;

  tls_files files_;
  stamp seen_{};
  tls_context context_;
};

} // namespace hicache
