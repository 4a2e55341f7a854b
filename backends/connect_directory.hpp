#pragma once

#include "backends/index_link.hpp"

#include <caf/actor_system.hpp>
#include <caf/io/middleman_actor.hpp>
#include <caf/sec.hpp>

#include <functional>
#include <set>
#include <string>

namespace hicache {

/// What CAF found at an address, if it is a directory.
/// @returns unsupported with a sentence
inline result<directory_actor> as_directory(caf::actor_system& system, const std::string& address,
                                            const caf::strong_actor_ptr& found,
                                            const std::set<std::string>& interface) {
  const auto expected = system.message_types(caf::detail::type_list<directory_actor>{});
  if (!found || !system.assignable(interface, expected))
    return fail(ec::unsupported, address + " is not an index of this version of hicache");
  return caf::actor_cast<directory_actor>(found);
}

/// Why CAF could not connect to an address, for people.
inline error connect_error(caf::actor_system& system, const std::string& address,
                           const caf::error& err) {
  const auto hung_up = err == caf::sec::disconnect_during_handshake;
  if (!hung_up && !(err == caf::sec::cannot_connect_to_node && system.has_openssl_manager()))
    return from_caf(err);
  return {ec::peer_unreachable,
          address + (hung_up ? " hung up" : " is not there or hung up")
            + ": both sides need certificates of one authority (--tls-cert, --tls-key, --tls-ca), "
              "or neither"};
}

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
        then(as_directory(self->system(), address, found, interface));
      },
      [self, address, then](const caf::error& err) {
        then(tl::unexpected{connect_error(self->system(), address, err)});
      });
}

} // namespace hicache
