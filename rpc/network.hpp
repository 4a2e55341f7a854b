#pragma once

#include "base/immovable.hpp"
#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"
#include "messages/interfaces.hpp"
#include "rpc/endpoint.hpp"

#include <caf/actor_system.hpp>

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace hicache {

/// A bound, listening socket; closed with the object unless passed to a server.
class listener {
public:
  explicit listener(int descriptor, rpc::endpoint where)
    : descriptor_(descriptor), where_(std::move(where)) {}

  /// Includes the actual port if port 0 was requested.
  const rpc::endpoint& where() const noexcept { return where_; }

  int release() noexcept { return descriptor_.release(); }

private:
  unique_fd descriptor_;
  rpc::endpoint where_;
};

/// How an index process serves its shards.
struct index_serving {
  /// Run the shards on the network's thread, which saves a lookup two thread switches; otherwise on
  /// CAF's pool, so that several shards use several cores.
  bool on_network_thread = false;
  /// When an unreachable peer is detected.
  std::chrono::seconds silence;
};

/// Connects this process with others: Cap'n Proto RPC on a thread of its own, which listens,
/// connects and waits for answers. Remote actors look like local ones: a request is answered, or
/// fails with the code of the remote actor or with peer_unreachable, deadline_exceeded or stopping.
/// Actors that are not detached handle answers on that thread. Any thread.
class rpc_network : immovable {
public:
  /// @param system Must outlive this.
  /// @param tls Uses TLS with certificates on both sides for every connection. Changed files are
  /// reloaded.
  /// @pre tls.check() succeeded
  rpc_network(caf::actor_system& system, const tls_files& tls);

  /// Closes all connections without waiting for peers.
  ~rpc_network();

  /// Opens a port or path. Connections queue until something is served there.
  /// @returns invalid_argument with a sentence
  static result<listener> listen(const rpc::endpoint& where);

  void serve(listener at, const directory_actor& directory, const index_serving& how);

  void serve(listener at, const member_actor& member);

  /// Serves a node to processes of the same user and machine, without TLS: the kernel identifies
  /// them.
  /// @param group Its processes may connect as well.
  /// @pre the listener is at a path
  void serve_node(listener at, const node_actor& node, std::optional<gid_t> group = {});

  /// Serves a node to processes on other machines. Page bytes travel in messages; see
  /// page_exchange.
  /// @param memory The node's, not empty; must outlive the serving.
  /// @pre the listener is at a port
  void serve_node(listener at, const node_actor& node, std::span<std::byte> memory);

  void stop_serving();

  /// Whether its thread responds within that time.
  bool answers(std::chrono::nanoseconds within) const;

  /// The actor that connects to index processes.
  const connector_actor& connector() const noexcept { return connector_; }

  /// An actor that connects to nodes: at unix:PATH to that of this machine, if this was made
  /// without TLS files, or at HOST:PORT to a node on another machine.
  connector_actor node_connector() const;

  /// Calls `ended` on the network's thread once the peer closes the connection or sends something,
  /// or this end is shut down; never if the network ends first.
  void watch(unique_fd connection, std::function<void()> ended) const;

  /// The member at an address. Does not block: it connects on the first request.
  member_actor member_at(const std::string& address) const { return members()(address); }

  /// Like member_at, but may outlive the network: requests fail with stopping then.
  std::function<member_actor(const std::string&)> members() const;

private:
  struct state;

  std::shared_ptr<state> state_;
  connector_actor connector_;
};

} // namespace hicache
