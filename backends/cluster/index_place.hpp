#pragma once

#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <string>
#include <variant>
#include <vector>

namespace hicache {

/// The addresses themselves: HOST:PORT or unix:PATH, separated by commas.
struct listed_place {
  std::vector<rpc::endpoint> addresses;
};

/// srv://NAME[?server=HOST:PORT]: the targets of NAME's SRV record in the DNS.
struct srv_place {
  /// Complete; no domain is searched for it.
  std::string name;
  /// Whom to ask, by number; those of the system if the host is empty.
  rpc::endpoint server;
};

/// etcd://HOST:PORT[,...]/PREFIX, or etcds:// for TLS: the values of the keys PREFIX/....
struct etcd_place {
  /// Of etcd; any of them will do.
  std::vector<rpc::endpoint> servers;
  /// Without slashes at its ends.
  std::string prefix;
  bool tls = false;
};

/// What --index and --join say: where the addresses of the index's processes come from.
using index_place = std::variant<listed_place, srv_place, etcd_place>;

/// @returns invalid_argument with a sentence that names the part that is wrong.
/// @relates index_place
result<index_place> parse_index_place(const std::string& text);

} // namespace hicache
