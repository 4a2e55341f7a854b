#pragma once

#include "backends/cluster/interruption.hpp"
#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// The SRV records of a service.
struct srv_records {
  /// Names and ports; empty if there is no such record.
  std::vector<rpc::endpoint> targets;
  /// Minimum over the records.
  uint32_t ttl_s = UINT32_MAX;
};

/// Parses a DNS answer. Skips records of other types and targets that are not host names.
/// @returns malformed_message if it is not a DNS answer
/// @relates srv_records
result<srv_records> read_srv_records(std::span<const std::byte> message);

/// The addresses of a host.
struct host_numbers {
  /// Numeric; empty if the host does not exist.
  std::vector<std::string> numbers;
  /// Minimum over the records.
  uint32_t ttl_s = UINT32_MAX;
};

struct dns_options {
  /// Numeric address of the name server; the system's servers if the host is empty.
  rpc::endpoint server;
  /// Whether to apply the system's search domains.
  bool search = false;
};

/// Queries the SRV records of a service, within source_answer_time or until `stop`.
/// @returns peer_unreachable if no server answers
result<srv_records> ask_services(const dns_options& whom, const std::string& name,
                                 interruption& stop);

/// Resolves several hosts at once, within the same bounds; also consults the system's hosts file.
/// @returns per host: peer_unreachable if no server answers
std::vector<result<host_numbers>>
ask_hosts(const dns_options& whom, const std::vector<std::string>& names, interruption& stop);

} // namespace hicache
