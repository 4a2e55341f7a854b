#pragma once

#include "hicache/error.hpp"

#include <chrono>
#include <string>
#include <vector>

/// Requests to etcd (version 3.4 and later) and its answers, as JSON over HTTP.
namespace hicache::etcd {

struct request {
  std::string path;
  std::string body;
};

/// Lists all keys PREFIX/.... Any member of etcd answers, even one that has lost the others.
request list_request(const std::string& prefix);

/// Requests a lease: keys put under it vanish unless it is refreshed within this time.
request lease_request(std::chrono::seconds time);

request refresh_request(const std::string& lease);

/// Ends a lease and deletes its keys.
request revoke_request(const std::string& lease);

/// Puts PREFIX/ADDRESS with the address as its value.
request put_request(const std::string& prefix, const std::string& address,
                    const std::string& lease);

/// Parses the answer to list_request.
/// @returns the values that are addresses, sorted; malformed_message if it is not such an answer
result<std::vector<std::string>> read_list(const std::string& body);

/// Parses the answer to lease_request.
/// @returns the lease; malformed_message if it is not such an answer
result<std::string> read_lease(const std::string& body);

/// Parses the answer to refresh_request.
/// @returns whether the lease still exists; malformed_message if it is not such an answer
result<bool> read_refresh(const std::string& body);

/// The text of a refusal, for messages.
std::string read_refusal(const std::string& body);

} // namespace hicache::etcd
