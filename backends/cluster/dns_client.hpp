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

/// What the DNS says of a service.
struct srv_records {
  /// Names and ports; none if there is no such record.
  std::vector<rpc::endpoint> targets;
  /// The least of the records.
  uint32_t ttl_s = UINT32_MAX;
};

/// Reads an answer of the DNS; records of other kinds are passed over, and targets that are no host
/// names.
/// @returns malformed_message if it is none
/// @relates srv_records
result<srv_records> read_srv_records(std::span<const std::byte> message);

/// The numbers of a host.
struct host_numbers {
  /// None if there is no such host.
  std::vector<std::string> numbers;
  /// The least of the records.
  uint32_t ttl_s = UINT32_MAX;
};

/// Whom to ask.
struct dns_options {
  /// By number; those of the system if the host is empty.
  rpc::endpoint server;
  /// Looks for names within the system's domains as well.
  bool search = false;
};

/// Asks the DNS, in source_answer_time at most, and no longer than until `stop`.
/// @returns peer_unreachable if no server answers
result<srv_records> ask_services(const dns_options& whom, const std::string& name,
                                 interruption& stop);

/// Likewise for several hosts at once; names of the system's own file are known, too.
/// @returns for each peer_unreachable if no server answers
std::vector<result<host_numbers>>
ask_hosts(const dns_options& whom, const std::vector<std::string>& names, interruption& stop);

} // namespace hicache
