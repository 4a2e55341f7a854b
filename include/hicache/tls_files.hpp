#pragma once

#include "hicache/error.hpp"

#include <string>

namespace hicache {

/// Files in PEM with which this process proves who it is to its peers, and they to it. All three
/// are given, or none, which means no TLS.
struct tls_files {
  /// This process's certificate, followed by those between it and the authority, if any.
  std::string certificate;
  /// The certificate's key, without a passphrase.
  std::string key;
  /// Certificates of the authorities whose peers are trusted; any peer that one of them has signed.
  std::string ca;

  bool given() const noexcept { return !certificate.empty() && !key.empty() && !ca.empty(); }

  /// Checks what is given as OpenSSL will read it. Files may be replaced while the process runs:
  /// connections from then on use the new ones, if they can be read.
  /// @returns invalid_argument with one sentence that names the flag and the file
  result<void> check() const;

  friend bool operator==(const tls_files&, const tls_files&) = default;
};

} // namespace hicache
