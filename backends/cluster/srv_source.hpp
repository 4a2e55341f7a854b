#pragma once

#include "backends/cluster/index_addresses.hpp"
#include "backends/cluster/index_place.hpp"

namespace hicache {

/// The targets of an SRV record. All are used at once, so priorities and weights are ignored.
class srv_source final : public address_source {
public:
  explicit srv_source(srv_place place) : place_(std::move(place)) {}

  result<address_answer> ask(const std::string& own, interruption& stop) override;

private:
  const srv_place place_;
};

} // namespace hicache
