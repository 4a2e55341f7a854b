#pragma once

#include "backends/index_link.hpp"

#include <caf/io/middleman_actor.hpp>
#include <caf/sec.hpp>

#include <functional>
#include <set>
#include <string>

namespace hicache {

/// Connects to the directory at an address; does not block. To be called by an actor on itself.
/// @param connector CAF's actor that connects.
/// @param then Called on the actor with the directory, or with why there is none.
template <class Self>
void connect_directory(Self* self, const caf::io::middleman_actor& connector,
                       const std::string& address,
                       std::function<void(result<directory_actor>)> then) {
  const auto where = parse_endpoint(address);
  if (!where) {
    then(tl::unexpected{where.error()});
    return;
  }
  self->request(connector, caf::infinite, caf::connect_atom::value, where->host, where->port)
    .then(
      [self, address, then](const caf::node_id&, const caf::strong_actor_ptr& found,
                            const std::set<std::string>& interface) {
        const auto expected
          = self->system().message_types(caf::detail::type_list<directory_actor>{});
        if (!found || !self->system().assignable(interface, expected))
          then(fail(ec::unsupported, address + " is not an index of this version of hicache"));
        else
          then(caf::actor_cast<directory_actor>(found));
      },
      [self, address, then](const caf::error& err) {
        const auto hung_up = err == caf::sec::disconnect_during_handshake;
        if (hung_up
            || (err == caf::sec::cannot_connect_to_node && self->system().has_openssl_manager()))
          then(fail(ec::peer_unreachable,
                    address + (hung_up ? " hung up" : " is not there or hung up")
                      + ": both sides need certificates of one authority (--tls-cert, "
                        "--tls-key, --tls-ca), or neither"));
        else
          then(tl::unexpected{from_caf(err)});
      });
}

} // namespace hicache
