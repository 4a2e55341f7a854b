#pragma once

#include "hicache/error.hpp"

#include <string>

namespace hicache {

/// PEM files for mutual authentication with peers. All three are given, or none: no TLS.
struct tls_files {
  /// This process's certificate, followed by any intermediate certificates.
  std::string certificate;
  /// The certificate's private key, without a passphrase.
  std::string key;
  /// Certificates of the authorities; peers whose certificate one of them signed are trusted.
  std::string ca;

  bool given() const noexcept { return !certificate.empty() && !key.empty() && !ca.empty(); }

  /// Checks that OpenSSL can load the given files. Files may be replaced while the process runs:
  /// later connections use the new ones, if they are readable.
  /// @returns invalid_argument with a sentence that names the flag and the file
  result<void> check() const;

  friend bool operator==(const tls_files&, const tls_files&) = default;
};

} // namespace hicache
