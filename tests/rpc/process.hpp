#pragma once

#include "hicache/caf_error.hpp"
#include "hicache/system_config.hpp"
#include "rpc/network.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/timespan.hpp>

#include <chrono>
#include <utility>

namespace hicache::test {

/// A process with actors.
class process {
public:
  explicit process(const tls_files& tls = {}) : system(config), network(system, tls) {}

  system_config config;
  caf::actor_system system;
  rpc_network network;
};

/// Asks an actor on behalf of a process.
template <class Answer, class Handle, class... Args>
result<Answer> ask_of(process& of, const Handle& to, Args... args) {
  auto self = caf::scoped_actor{of.system};
  auto answer = result<Answer>{};
  self->request(to, caf::timespan{std::chrono::seconds{20}}, std::move(args)...)
    .receive([&](Answer& x) { answer = std::move(x); },
             [&](caf::error& err) { answer = tl::unexpected{from_caf(err)}; });
  return answer;
}

} // namespace hicache::test
