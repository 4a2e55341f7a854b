#include "launch/node_host.hpp"

#include "actors/node.hpp"
#include "backends/ask.hpp"
#include "base/units.hpp"
#include "messages/page_header.hpp"

#include <caf/scoped_actor.hpp>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <utility>

namespace hicache {

node_host::node_host(caf::actor_system& system, node_host_options options)
  : system_(system), options_(std::move(options)) {}

result<std::unique_ptr<node_host>> node_host::start(caf::actor_system& system,
                                                    node_host_options options) {
  auto host = std::unique_ptr<node_host>{new node_host{system, std::move(options)}};
  if (auto served = host->serve(); !served)
    return tl::unexpected{served.error()};
  return host;
}

result<void> node_host::serve() {
  if (const auto least = slot_bytes_for(1); options_.memory_bytes < least)
    return fail(ec::invalid_argument, "--memory: " + format_bytes(options_.memory_bytes)
                                        + " holds no page; expected at least "
                                        + format_bytes(least));
  auto socket = options_.opened ? result<listener>{std::move(*options_.opened)}
                                : rpc_network::listen({"unix:" + options_.socket, 0});
  if (!socket)
    return fail(ec::invalid_argument, "--socket: " + socket.error().detail);
  is_bound_ = !options_.opened;
  auto settings = cluster_member_options{};
  settings.index = options_.index;
  settings.is_alone = options_.index.empty();
  settings.segment_bytes = options_.memory_bytes;
  settings.segment_flag = "--memory";
  settings.clients_write = true;
  settings.policy.held_share = options_.leased_share;
  settings.listen_host = options_.listen_host;
  settings.tls = options_.tls;
  settings.clock = options_.clock;
  auto member = cluster_member::join(system_, std::move(settings));
  if (!member)
    return tl::unexpected{member.error()};
  member_ = std::move(*member);
  auto offer = memory_offer::start(member_->memory(), peer_access::write);
  if (!offer)
    return tl::unexpected{offer.error()};
  offer_ = std::move(*offer);
  fetcher_ = member_->start_fetcher();
  auto settings_of_node = node_options{};
  settings_of_node.info.memory_name = offer_->name();
  settings_of_node.info.memory_bytes = member_->segment_memory().size();
  settings_of_node.memory = member_->segment_memory();
  settings_of_node.segment = member_->segment();
  settings_of_node.fetcher = fetcher_;
  settings_of_node.shares = options_.shares;
  settings_of_node.figures = member_->shared_figures();
  settings_of_node.clock = options_.clock;
  node_ = system_.spawn(hicache::node, std::move(settings_of_node));
  network_ = std::make_unique<rpc_network>(system_, tls_files{});
  network_->serve_node(std::move(*socket), node_);
  spdlog::info("lends {} to processes of this user at {}",
               format_bytes(member_->segment_memory().size()), options_.socket);
  return {};
}

bool node_host::answers(duration within) const {
  const auto deadline = options_.clock->now() + within;
  const auto left = [&] { return time_left(*options_.clock, deadline); };
  return network_->answers(within)
         && ask<node_status>(system_, node_, left(), atom::status_v, status_query{0, 1})
         && ask<segment_slots>(system_, member_->segment(), left(), atom::hold_v, segment_holds{});
}

node_host::~node_host() {
  if (network_)
    network_->stop_serving();
  auto self = caf::scoped_actor{system_};
  const auto end = [&](const auto& actor) {
    if (!actor)
      return;
    self->send_exit(actor, caf::exit_reason::user_shutdown);
    self->wait_for(actor);
  };
  end(node_);
  end(fetcher_);
  // The file of a socket outlives it. Who starts here next would replace it, but people look for
  // it.
  if (is_bound_)
    ::unlink(options_.socket.c_str());
}

} // namespace hicache
