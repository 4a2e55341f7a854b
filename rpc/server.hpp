#pragma once

#include "base/immovable.hpp"
#include "rpc/limits.hpp"
#include "rpc/services.hpp"
#include "rpc/sockets.hpp"
#include "rpc/tls.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Which peers may connect, and limits on them.
struct rpc_admission {
  /// When an unreachable peer is detected.
  std::chrono::seconds silence;
  /// At a path, without TLS, only for processes of this process's user or of the group, each with a
  /// bounded number of connections.
  bool is_local = false;
  std::optional<gid_t> group;
  /// Maximum connections of one machine, by its address.
  size_t of_machine = rpc::limits::connections;
};

/// Accepts connections and serves actors to the peers. Loop thread only.
class rpc_server : public std::enable_shared_from_this<rpc_server>, immovable {
public:
  /// @param socket Bound and listening; takes ownership.
  /// @param loop, tls, here Must outlive the server.
  rpc_server(caf::actor_system& system, rpc_loop& loop, tls_source& tls, inline_unit& here,
             int socket, served_actors served, rpc_admission admits);

  ~rpc_server();

private:
  struct visitor;

  /// Accepts connections in an endless loop.
  kj::Promise<void> accept_next();

  void admit(kj::Own<kj::AsyncIoStream> stream);

  /// Throws unless the peer's process may connect.
  void check_process(visitor& peer);

  /// Throws if the peer's machine has its maximum of connections.
  void check_machine(const visitor& peer) const;

  /// Serves a peer until either side ends the connection.
  kj::Promise<void> serve(visitor& peer);

  /// Closes peers that are silent or do not read. Repeats every second, which is the precision of
  /// these bounds.
  kj::Promise<void> sweep();

  /// Closes a connection and logs why.
  void refuse(visitor& peer, const std::string& why);

  void forget(visitor& peer);

  /// Destroys a peer, but not while its own code is running.
  void erase(visitor& peer);

  caf::actor_system& system_;
  rpc_loop& loop_;
  tls_source& tls_;
  inline_unit& here_;
  served_actors served_;
  rpc_admission admits_;
  bool is_short_of_descriptors_ = false;
  kj::Own<kj::ConnectionReceiver> receiver_;
  /// In order of arrival.
  std::list<visitor> visitors_;
  size_t unproven_ = 0;
  kj::Promise<void> accepting_ = nullptr;
  kj::Promise<void> sweeping_ = nullptr;
};

} // namespace hicache
