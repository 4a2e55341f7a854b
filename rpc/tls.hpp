#pragma once

#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>

namespace hicache {

using tls_context = std::shared_ptr<SSL_CTX>;

/// Whose certificates count, of those that the authority signed.
enum class tls_peers : uint8_t {
  /// Who connects has any role; who is connected to has that of a member.
  cluster,
  /// The ranks of one instance: those with this process's rights.
  ranks,
};

/// Reads the files: both sides of a connection show a certificate that the authority signed.
/// @returns invalid_argument with one sentence that names the flag and the file
/// @pre files.given()
result<tls_context> load_tls(const tls_files& files, tls_peers peers = tls_peers::cluster);

/// The context for new connections. Files that were replaced are read again; where they cannot be,
/// what was read before stays. One thread.
class tls_source {
public:
  explicit tls_source(tls_files files) : files_(std::move(files)) {}

  bool is_used() const noexcept { return files_.given(); }

  /// @returns as load_tls, if the files could never be read
  /// @pre is_used()
  result<tls_context> get();

private:
  /// What tells one version of the files from another.
  using stamp = std::array<uint64_t, 12>;

  stamp look() const;

  tls_files files_;
  stamp seen_{};
  tls_context context_;
};

} // namespace hicache
