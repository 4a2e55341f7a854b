#pragma once

#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <string>
#include <variant>
#include <vector>

namespace hicache {

/// A list of addresses: HOST:PORT or unix:PATH, separated by commas.
struct listed_place {
  std::vector<rpc::endpoint> addresses;
};

/// srv://NAME[?server=HOST:PORT]: the targets of NAME's SRV record in the DNS.
struct srv_place {
  /// Fully qualified; no search domain is applied.
  std::string name;
  /// Numeric address of the name server; the system's servers if the host is empty.
  rpc::endpoint server;
};

/// etcd://HOST:PORT[,...]/PREFIX, or etcds:// for TLS: the values of the keys PREFIX/....
struct etcd_place {
  /// Members of etcd; any of them suffices.
  std::vector<rpc::endpoint> servers;
  /// Without leading or trailing slash.
  std::string prefix;
  bool tls = false;
};

/// The value of --index or --join: where the addresses of the index's processes come from.
using index_place = std::variant<listed_place, srv_place, etcd_place>;

/// @returns invalid_argument with a sentence that names the invalid part.
/// @relates index_place
result<index_place> parse_index_place(const std::string& text);

} // namespace hicache
