#pragma once

#include "rpc/connection.hpp"
#include "rpc/session.hpp"

#include <caf/actor_control_block.hpp>
#include <caf/actor_system.hpp>
#include <caf/mailbox_element.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace hicache {

/// The requester of an answer.
class pending_answer;

/// This process's end of a remote actor. Loop thread only.
class remote_end {
public:
  virtual ~remote_end() noexcept(false) = default;

  /// Forwards a message.
  /// @returns the answer; fails with to_exception
  virtual kj::Promise<caf::message> call(const caf::type_erased_tuple& what) = 0;

  /// Whether a request has no timeout, since it may take arbitrarily long.
  virtual bool is_patient(caf::atom_value) const { return false; }
};

/// The remote ends of a process, and their proxies: local actors that accept a message on the
/// sender's thread and hand it to the loop's thread. Shared by the proxies, which may outlive the
/// loop and answer ec::stopping then.
class proxy_table : public std::enable_shared_from_this<proxy_table> {
public:
  proxy_table(caf::actor_system& system, std::shared_ptr<rpc_loop> loop, tls_files files);

  // -- any thread -------------------------------------------------------------

  /// Connects to index processes; a connector_actor.
  caf::strong_actor_ptr connector();

  /// Connects to nodes; a connector_actor.
  caf::strong_actor_ptr node_connector();

  /// A member at an address; a member_actor. Connects on the first request, and again after the
  /// connection was lost.
  caf::strong_actor_ptr member_at(std::string address);

  // -- the loop's thread ------------------------------------------------------

  /// Proxy of a directory, shard or node. It ends with its connection.
  template <class End, class... Args>
  caf::strong_actor_ptr connected(std::shared_ptr<rpc_connection> at, Args&&... args);

  rpc_loop& loop() const noexcept { return *loop_; }

  tls_source& tls() noexcept { return tls_; }

  /// Releases all remote ends.
  void close();

private:
  class proxy_actor;
  friend class proxy_actor;

  /// Makes the proxy of the remote end of that number.
  caf::strong_actor_ptr make_proxy(uint64_t number);

  /// Adds a remote end, from any thread.
  /// @returns its proxy
  caf::strong_actor_ptr enter(std::shared_ptr<remote_end> end);

  /// Forwards a message to a remote end, and the answer to its sender.
  void pass(uint64_t number, const caf::mailbox_element& what,
            std::shared_ptr<pending_answer> asker, caf::strong_actor_ptr proxy);

  caf::actor_system& system_;
  std::shared_ptr<rpc_loop> loop_;
  std::atomic<uint64_t> last_number_ = 0;
  // Loop thread only.
  tls_source tls_;
  /// Runs the actors that receive answers.
  inline_unit here_;
  bool is_closed_ = false;
  std::unordered_map<uint64_t, std::shared_ptr<remote_end>> ends_;
};

} // namespace hicache
