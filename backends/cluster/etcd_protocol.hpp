#pragma once

#include "hicache/error.hpp"

#include <chrono>
#include <string>
#include <vector>

/// What is said to etcd (version 3.4 and later) and heard from it, as JSON over HTTP.
namespace hicache::etcd {

/// A POST.
struct request {
  std::string path;
  std::string body;
};

/// Asks for all keys PREFIX/.... Any member of etcd answers, even one that has lost the others.
request list_request(const std::string& prefix);

/// Asks for a lease: what is put under it goes when the time has passed without a refresh.
request lease_request(std::chrono::seconds time);

request refresh_request(const std::string& lease);

/// Ends a lease, and what was put under it.
request revoke_request(const std::string& lease);

/// Puts PREFIX/ADDRESS with the address as its value.
request put_request(const std::string& prefix, const std::string& address,
                    const std::string& lease);

/// Answer to list_request: the values that are addresses, in order.
/// @returns malformed_message if it is none
result<std::vector<std::string>> read_list(const std::string& body);

/// Answer to lease_request: the lease.
/// @returns malformed_message if it is none
result<std::string> read_lease(const std::string& body);

/// Answer to refresh_request: whether the lease is there still.
/// @returns malformed_message if it is none
result<bool> read_refresh(const std::string& body);

/// What the body of a refusal says, for people.
std::string read_refusal(const std::string& body);

} // namespace hicache::etcd
