#pragma once

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

/// A socket that is bound and listens; closed with the object, unless something is served there.
class listener {
public:
  explicit listener(int descriptor, rpc::endpoint where)
    : descriptor_(descriptor), where_(std::move(where)) {}

  listener(listener&& other) noexcept
    : descriptor_(other.release()), where_(std::move(other.where_)) {}

  listener& operator=(listener&&) = delete;

  ~listener();

  /// With the port that was chosen if another one was not named.
  const rpc::endpoint& where() const noexcept { return where_; }

  int release() noexcept { return std::exchange(descriptor_, -1); }

private:
  int descriptor_;
  rpc::endpoint where_;
};

/// How an index process serves its shards.
struct index_serving {
  /// The shards run on the network's thread, which saves a look-up two changes of thread; else on
  /// CAF's pool, so that several shards use several cores.
  bool on_network_thread = false;
  /// When a peer that is cut off is noticed.
  std::chrono::seconds silence;
};

/// This process's way to others and theirs to it: Cap'n Proto RPC, on one thread of its own, which
/// listens, connects and waits for answers. Actors of other processes look like actors of this one:
/// a request to them is answered, or fails as it would here, with the code that the other actor
/// gave, or with peer_unreachable, deadline_exceeded or stopping. Actors that are not detached go
/// on with answers on that thread. Any thread.
class rpc_network {
public:
  /// @param system Must outlive this.
  /// @param tls Makes every connection one of TLS, on which both sides show a certificate. The
  /// files are read again when they change.
  /// @pre tls.check() succeeded
  rpc_network(caf::actor_system& system, const tls_files& tls);

  /// Closes all connections. Waits for nobody.
  ~rpc_network();

  rpc_network(const rpc_network&) = delete;

  rpc_network& operator=(const rpc_network&) = delete;

  /// Opens a port, or a path. Who connects waits until something is served there.
  /// @returns invalid_argument with a sentence
  static result<listener> listen(const rpc::endpoint& where);

  /// Lets others reach a directory and its shards.
  void serve(listener at, const directory_actor& directory, const index_serving& how);

  /// Lets others reach a member.
  void serve(listener at, const member_actor& member);

  /// Lets processes of the same user and machine reach a node, without TLS: the system says who
  /// they are.
  /// @param group Whose processes may reach it as well.
  /// @pre the listener is at a path
  void serve_node(listener at, const node_actor& node, std::optional<gid_t> group = {});

  /// Lets processes of other machines reach a node. Bytes of pages come and go in messages; see
  /// page_exchange.
  /// @param memory The node's, not empty; must outlive the serving.
  /// @pre the listener is at a port
  void serve_node(listener at, const node_actor& node, std::span<std::byte> memory);

  /// Lets nobody reach anything any more.
  void stop_serving();

  /// Whether its thread takes work within that time.
  bool answers(std::chrono::nanoseconds within) const;

  /// The actor that connects to index processes.
  const connector_actor& connector() const noexcept { return connector_; }

  /// An actor that connects to nodes: at unix:PATH to that of this machine, if this was made
  /// without TLS files, and to one that serves a port of another machine.
  connector_actor node_connector() const;

  /// Calls back, on the network's thread, once the other end of a connection hangs up (or says
  /// something), or this one is shut down; never if the network ends before.
  void watch(unique_fd connection, std::function<void()> ended) const;

  /// The member at an address. Does not block: it is connected to when there is something to ask.
  member_actor member_at(const std::string& address) const { return members()(address); }

  /// The same for those that may outlive the network: then what is asked fails with stopping.
  std::function<member_actor(const std::string&)> members() const;

private:
  struct state;

  std::shared_ptr<state> state_;
  connector_actor connector_;
};

} // namespace hicache
