#pragma once

#include "backends/cluster/etcd_protocol.hpp"
#include "backends/cluster/index_addresses.hpp"
#include "backends/cluster/index_place.hpp"

#include <cstddef>
#include <string>

namespace hicache {

/// Addresses that processes of the index have put into etcd, under leases that they refresh.
class etcd_source final : public address_source {
public:
  /// @param tls For connections to etcd; empty: plaintext. Read again for each connection.
  etcd_source(etcd_place place, tls_files tls) : place_(std::move(place)), tls_(std::move(tls)) {}

  result<address_answer> ask(const std::string& own, interruption& stop) override;

  void leave() override;

private:
  class connection;

  result<address_answer> ask_server(const rpc::endpoint& server, const std::string& own,
                                    interruption& stop);

  result<address_answer> ask_at(connection& server, const std::string& own);

  /// Refreshes the lease, or requests one.
  result<void> hold_lease(connection& server);

  const etcd_place place_;
  const tls_files tls_;
  /// Index of the server that answered last.
  size_t at_ = 0;
  /// Its numeric address; empty if it did not answer.
  std::string number_;
  /// Empty: none.
  std::string lease_;
  /// Whether the own address was put under the lease.
  bool is_put_ = false;
};

} // namespace hicache
