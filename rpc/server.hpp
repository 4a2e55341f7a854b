#pragma once

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

/// Who is let in, and for how long.
struct rpc_admission {
  /// When a peer that is cut off is noticed.
  std::chrono::seconds silence;
  /// At a path, without TLS, and only processes of the user that this one runs as, or of the group,
  /// each with a bounded number of connections.
  bool is_local = false;
  std::optional<gid_t> group;
  /// Connections of one machine, by its address.
  size_t of_machine = rpc::limits::connections;
};

/// Accepts connections and serves actors to those who are there. The loop's thread.
class rpc_server : public std::enable_shared_from_this<rpc_server> {
public:
  /// @param socket Bound and listening; taken over.
  /// @param loop, tls, here Must outlive the server.
  rpc_server(caf::actor_system& system, rpc_loop& loop, tls_source& tls, inline_unit& here,
             int socket, served_actors served, rpc_admission admits);

  ~rpc_server();

  rpc_server(const rpc_server&) = delete;

  rpc_server& operator=(const rpc_server&) = delete;

private:
  struct visitor;

  /// Takes the next connection, for ever.
  kj::Promise<void> accept_next();

  void admit(kj::Own<kj::AsyncIoStream> stream);

  /// Throws unless a process of this machine is let in.
  void check_process(visitor& peer);

  /// Throws if a machine has as many connections as it may.
  void check_machine(const visitor& peer) const;

  /// Speaks with a peer until one of the two ends it.
  kj::Promise<void> serve(visitor& peer);

  /// Closes what is silent, or does not take what it is sent. Again each second, which is how much
  /// longer a bound may be exceeded.
  kj::Promise<void> sweep();

  /// Ends a connection, and says so.
  void refuse(visitor& peer, const std::string& why);

  void forget(visitor& peer);

  /// Lets go of a peer, but not while what belongs to it is at work.
  void erase(visitor& peer);

  caf::actor_system& system_;
  rpc_loop& loop_;
  tls_source& tls_;
  inline_unit& here_;
  served_actors served_;
  rpc_admission admits_;
  bool is_short_of_descriptors_ = false;
  kj::Own<kj::ConnectionReceiver> receiver_;
  /// In the order in which they came.
  std::list<visitor> visitors_;
  size_t unproven_ = 0;
  kj::Promise<void> accepting_ = nullptr;
  kj::Promise<void> sweeping_ = nullptr;
};

} // namespace hicache
