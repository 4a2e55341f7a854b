#pragma once

#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"

#include <openssl/x509.h>

#include <string>

namespace hicache {

/// What a process may do beyond reading, which is to look pages up, to read them, and to ask for
/// the state of index and members. By default everything, as without TLS.
struct peer_rights {
  /// To keep pages for others and have others keep them, and to serve shards of the index.
  bool as_member = true;
  /// To drain, clear and pin what members keep, and to give up shards.
  bool as_operator = true;

  friend bool operator==(const peer_rights&, const peer_rights&) = default;
};

/// The role that comes with these rights: "reader", "member" or "operator"; "any" with all.
/// @relates peer_rights
const char* role_of(const peer_rights& rights) noexcept;

/// Whom a certificate is for.
struct peer_identity {
  /// As "CN=node1, OU=hicache:reader", without control characters; empty without TLS.
  std::string subject;
  peer_rights rights;
};

/// What a certificate says. Each organisational unit "hicache:ROLE" of its subject adds the rights
/// of member, reader or operator; a certificate without one has all rights.
/// @returns not_permitted with a sentence about a certificate ("it ...") whose role is none of them
result<peer_identity> identify(const X509& certificate);

/// Checks that this process may keep pages for others and serve shards.
/// @param what What that is for, as the subject of a sentence.
/// @returns invalid_argument with a sentence that names --tls-cert, its role and what it is for
/// @pre files.check() succeeded
result<void> check_own_role(const tls_files& files, const std::string& what);

} // namespace hicache
