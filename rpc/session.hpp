#pragma once

#include "base/immovable.hpp"
#include "rpc/loop.hpp"
#include "rpc/peer_identity.hpp"

#include <absl/container/flat_hash_map.h>
#include <caf/execution_unit.hpp>
#include <caf/monitorable_actor.hpp>
#include <caf/resumable.hpp>

#include <cstdint>
#include <deque>
#include <memory>

namespace hicache {

/// Runs actors on the loop's thread as soon as they receive a message, so a request needs no second
/// thread. An actor that is already running elsewhere handles the message there.
class inline_unit final : public caf::execution_unit {
public:
  explicit inline_unit(caf::actor_system& system) : execution_unit(&system) {}

  void exec_later(caf::resumable* job) override { jobs_.push_back(job); }

  /// Runs all pending jobs.
  void run();

private:
  std::deque<caf::resumable*> jobs_;
};

/// One peer that calls actors of this process. Appears to them as an actor that ends with the
/// connection. Loop thread only.
class session : public std::enable_shared_from_this<session>, immovable {
public:
  session(caf::actor_system& system, std::shared_ptr<rpc_loop> loop, peer_identity peer);

  /// Notifies monitoring actors.
  ~session();

  const peer_rights& rights() const noexcept { return peer_.rights; }

  /// Fails with not_permitted (to_exception) if the peer lacks a right; logs the first refusal.
  /// @param what Completes the sentence "... may not".
  void demand(bool peer_rights::*right, const char* what);

  /// Sends a request. An error reply becomes an exception (to_exception).
  /// @param here Where the actor may run; null: on its own thread or CAF's pool.
  kj::Promise<caf::message> ask(const caf::strong_actor_ptr& to, caf::message what,
                                inline_unit* here);

  void tell(const caf::strong_actor_ptr& to, caf::message what, inline_unit* here);

private:
  class peer_actor;

  void take_answer(uint64_t number, const caf::message& answer);

  std::shared_ptr<rpc_loop> loop_;
  caf::actor_system& system_;
  peer_identity peer_;
  bool was_refused_ = false;
  /// Created on the first request.
  caf::strong_actor_ptr self_;
  uint64_t last_request_ = 0;
  absl::flat_hash_map<uint64_t, kj::Own<kj::PromiseFulfiller<caf::message>>> open_;
};

} // namespace hicache
