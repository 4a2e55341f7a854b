#pragma once

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

/// Runs actors on the loop's thread as soon as something was sent to them, so that a request needs
/// no second thread. An actor that runs elsewhere already takes the message there.
class inline_unit final : public caf::execution_unit {
public:
  explicit inline_unit(caf::actor_system& system) : execution_unit(&system) {}

  void exec_later(caf::resumable* job) override { jobs_.push_back(job); }

  /// Runs what there is to run.
  void run();

private:
  std::deque<caf::resumable*> jobs_;
};

/// One peer that asks actors of this process. To the actors it is an actor, which ends with the
/// connection. The loop's thread.
class session : public std::enable_shared_from_this<session> {
public:
  session(caf::actor_system& system, std::shared_ptr<rpc_loop> loop, peer_identity peer);

  /// Tells the actors that watch it.
  ~session();

  session(const session&) = delete;

  session& operator=(const session&) = delete;

  const peer_rights& rights() const noexcept { return peer_.rights; }

  /// Refuses what the peer has no right to: fails with not_permitted (to_exception), and notes the
  /// first time in the log.
  /// @param what Ends the sentence "... may not".
  void demand(bool peer_rights::*right, const char* what);

  /// Sends a request. An error that is answered becomes an exception (to_exception).
  /// @param here Where the actor may run; null: on a thread of its own, or of CAF's pool.
  kj::Promise<caf::message> ask(const caf::strong_actor_ptr& to, caf::message what,
                                inline_unit* here);

  /// Sends a message.
  void tell(const caf::strong_actor_ptr& to, caf::message what, inline_unit* here);

private:
  class peer_actor;

  void take_answer(uint64_t number, const caf::message& answer);

  std::shared_ptr<rpc_loop> loop_;
  caf::actor_system& system_;
  peer_identity peer_;
  bool was_refused_ = false;
  /// Made with the first request.
  caf::strong_actor_ptr self_;
  uint64_t last_request_ = 0;
  absl::flat_hash_map<uint64_t, kj::Own<kj::PromiseFulfiller<caf::message>>> open_;
};

} // namespace hicache
