#pragma once

#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <openssl/x509.h>

#include <string>

namespace hicache {

/// What a process may do besides reading: looking up and reading pages, and querying the state of
/// index and members. All rights by default, as without TLS.
struct peer_rights {
  /// Store pages for others and at others, and serve shards of the index.
  bool as_member = true;
  /// Drain, clear and pin pages of members, and give up shards.
  bool as_operator = true;

  friend bool operator==(const peer_rights&, const peer_rights&) = default;
};

/// The role with these rights: "reader", "member" or "operator"; "any" for all.
/// @relates peer_rights
const char* role_of(const peer_rights& rights) noexcept;

/// The subject of a certificate.
struct peer_identity {
  /// E.g. "CN=node1, OU=hicache:reader", without control characters; empty without TLS.
  std::string subject;
  peer_rights rights;
};

/// Reads a certificate. Each organisational unit "hicache:ROLE" of its subject adds the rights of
/// member, reader or operator; a certificate without one has all rights.
/// @returns not_permitted with a sentence about the certificate ("it ...") if a role is none of
/// these
result<peer_identity> identify(const X509& certificate);

/// Checks that this process may act as a member and serve shards.
/// @param what The purpose, as the subject of a sentence.
/// @returns invalid_argument with a sentence that names --tls-cert, its role and the purpose
/// @pre files.check() succeeded
result<void> check_own_role(const tls_files& files, const std::string& what);

} // namespace hicache
