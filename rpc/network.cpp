#include "rpc/network.hpp"

#include "base/check.hpp"
#include "rpc/limits.hpp"
#include "rpc/proxies.hpp"
#include "rpc/server.hpp"

#include <caf/actor_cast.hpp>
#include <kj/async-io.h>

#include <future>
#include <vector>

namespace hicache {

/// Lives until the loop has ended.
struct rpc_network::state {
  state(caf::actor_system& of, const tls_files& tls)
    : system(of), loop(rpc_loop::start()), proxies(std::make_shared<proxy_table>(of, loop, tls)),
      here(of) {}

  void serve(listener at, served_actors served, rpc_admission admits) {
    loop->post([this, at = std::move(at), served = std::move(served), admits]() mutable {
      servers.push_back(std::make_shared<rpc_server>(system, *loop, proxies->tls(), here,
                                                     at.release(), std::move(served), admits));
    });
  }

  caf::actor_system& system;
  std::shared_ptr<rpc_loop> loop;
  std::shared_ptr<proxy_table> proxies;
  // Loop thread only.
  inline_unit here;
  std::vector<std::shared_ptr<rpc_server>> servers;
};

rpc_network::rpc_network(caf::actor_system& system, const tls_files& tls)
  : state_(std::make_shared<state>(system, tls)),
    connector_(caf::actor_cast<connector_actor>(state_->proxies->connector())) {
  state_->loop->post([state = state_.get()] {
    state->loop->at_end([state] {
      state->servers.clear();
      state->proxies->close();
    });
  });
}

rpc_network::~rpc_network() {
  connector_ = nullptr;
  state_->loop->close();
}

result<listener> rpc_network::listen(const rpc::endpoint& where) {
  return open_listener(where);
}

void rpc_network::serve(listener at, const directory_actor& directory, const index_serving& how) {
  state_->serve(std::move(at), {directory, {}, {}, how.on_network_thread, {}},
                {how.silence, false, {}});
}

void rpc_network::serve(listener at, const member_actor& member) {
  state_->serve(std::move(at), {{}, member, {}, false, {}}, {rpc::limits::peer_silence, false, {}});
}

void rpc_network::serve_node(listener at, const node_actor& node, std::optional<gid_t> group) {
  HICACHE_CHECK(at.where().is_path());
  state_->serve(std::move(at), {{}, {}, node, false, {}}, {rpc::limits::peer_silence, true, group});
}

void rpc_network::serve_node(listener at, const node_actor& node, std::span<std::byte> memory) {
  HICACHE_CHECK(!at.where().is_path() && !memory.empty());
  state_->serve(std::move(at), {{}, {}, node, false, memory},
                {rpc::limits::peer_silence, false, {}, rpc::limits::connections_of_machine});
}

void rpc_network::stop_serving() {
  auto done = std::promise<void>{};
  const auto is_running = state_->loop->post([state = state_.get(), &done] {
    state->servers.clear();
    done.set_value();
  });
  if (is_running)
    done.get_future().wait();
}

bool rpc_network::answers(std::chrono::nanoseconds within) const {
  const auto had_turn = std::make_shared<std::promise<void>>();
  return state_->loop->post([had_turn] { had_turn->set_value(); })
         && had_turn->get_future().wait_for(within) == std::future_status::ready;
}

connector_actor rpc_network::node_connector() const {
  return caf::actor_cast<connector_actor>(state_->proxies->node_connector());
}

void rpc_network::watch(unique_fd connection, std::function<void()> ended) const {
  state_->loop->post([loop = state_->loop.get(), connection = std::move(connection),
                      ended = std::move(ended)]() mutable {
    auto stream = loop->provider().wrapSocketFd(connection.release(),
                                                kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP
                                                  | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
    auto byte = kj::heapArray<kj::byte>(1);
    auto end = stream->tryRead(byte.begin(), 1, 1);
    loop->keep(end.then([ended](size_t) { ended(); }, [ended](kj::Exception&&) { ended(); })
                 .attach(kj::mv(stream), kj::mv(byte)));
  });
}

std::function<member_actor(const std::string&)> rpc_network::members() const {
  return [proxies = state_->proxies](const std::string& address) {
    return caf::actor_cast<member_actor>(proxies->member_at(address));
  };
}

} // namespace hicache
