#pragma once

#include "cache/step/attachment_machine.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace hicache {

/// An open store and what the tree needs to know about it.
struct open_store {
  storage_actor actor;
  prefetch_settings prefetch;
  /// See storage_change::exports_l2.
  bool exports_l2 = false;
  /// Ends the actor and frees what the store holds. Blocks.
  std::function<void()> close;
};

/// Opens a store on this rank; blocks. Validates the request like the flags of the same names.
/// @returns invalid_argument with one sentence, or why the store cannot be opened
using store_opener = std::function<result<open_store>(const storage_attachment&)>;

/// Another configuration of the open store, prepared. One of the functions is called; both block.
struct store_change {
  std::function<void()> adopt;
  /// Leaves the store as it was.
  std::function<void()> revert;
};

/// Prepares the open store for another configuration, within a time; blocks.
/// @returns invalid_argument with one sentence, or why it cannot be done
using store_changer = std::function<result<store_change>(const storage_attachment&, caf::timespan)>;

struct attachment_options {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  store_opener open;
  store_changer change;
  /// Attached at start; none if `store` has no actor.
  storage_attachment attached;
  open_store store;
  /// How long ranks wait for each other beyond the deadline of a request.
  caf::timespan patience{};
};

struct attachment_peers {
  tree_core_actor tree;
  prefetcher_actor prefetcher;
  backup_actor backup;
  rank_reduction_core_actor ranks;
};

/// Carries out what an `attachment_machine` decides.
/// @relates attachment
struct attachment_state {
  static inline constexpr auto name = "attachment";

  explicit attachment_state(attachment_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<atom::ok> change(const storage_attachment& wanted, caf::timespan time);

  caf::result<atom::ok> end();

  // -- internal steps ---------------------------------------------------------

  /// Takes the minimum over all ranks.
  /// @param wait For the other ranks; nullopt: no timeout.
  template <class Next>
  void reduce(std::vector<int64_t> values, std::optional<caf::timespan> wait, Next next);

  /// Broadcasts one rank's texts to all ranks.
  /// @param texts This rank's texts; empty if another rank is the source.
  template <class Next>
  void broadcast(const std::vector<std::string>& texts, std::optional<caf::timespan> wait,
                 Next next);

  /// Sends a request; no timeout if `time` is nullopt.
  template <class Handle, class... Args>
  auto ask(const Handle& whom, std::optional<caf::timespan> time, const Args&... args);

  /// Waits until an actor is done with the store.
  /// @param why_not What is wrong if it is not in time.
  template <class Handle>
  void drain(const Handle& whom, caf::timespan wait, const char* why_not);

  /// Notes what is to be attached; what it leaves open stays as it is.
  void want(const storage_attachment& what);

  /// Gives the prefetcher and the backup their store; null: none.
  void hand_over(const storage_actor& store);

  // -- actions of the machine -------------------------------------------------

  /// Feeds an event to the machine and carries out its actions.
  void handle(const attachment_machine::event& what);

  void carry_out(const std::vector<attachment_machine::action>& actions);

  void act(const attachment_machine::announce& what);
  void act(const attachment_machine::open& what);
  void act(const attachment_machine::prepare& what);
  void act(const attachment_machine::vote& what);
  void act(const attachment_machine::explain& what);
  void act(const attachment_machine::freeze& what);
  void act(const attachment_machine::fix& what);
  void act(const attachment_machine::abort& what);
  void act(const attachment_machine::commit& what);
  void act(const attachment_machine::drain_reads& what);
  void act(const attachment_machine::drain_writes& what);
  void act(const attachment_machine::use_store& what);
  void act(const attachment_machine::discard_store& what);
  void act(const attachment_machine::adopt& what);
  void act(const attachment_machine::revert& what);
  void act(const attachment_machine::close_store& what);
  void act(const attachment_machine::answer& what);
  void act(const attachment_machine::end& what);

  // -- data -------------------------------------------------------------------

  attachment_actor::pointer self;
  attachment_options options;
  attachment_peers peers;
  std::optional<attachment_machine> machine; // Set once, by attachment().
  /// Opened, not yet in use.
  storage_attachment wanted;
  open_store fresh;
  /// Prepared, neither adopted nor reverted.
  store_change prepared;
  /// Rank 0: the caller of the pending change.
  std::optional<caf::typed_response_promise<atom::ok>> asking;
  std::vector<caf::typed_response_promise<atom::ok>> ending;
};

/// Attaches and detaches L3 while the instance runs. Requests go to rank 0. The ranks coordinate
/// over a communicator of their own, so a change needs no step to propagate, and agree on the step
/// before which it takes effect:
/// - attach: every rank opens the store; if all succeed, all trees attach it before the same step.
/// - detach: all trees stop new work and end running work before the same step; each rank waits
/// until its store is idle. If all meet the deadline, the trees reclaim the prefetchers' staging
/// pages and the stores are closed; otherwise all trees attach again. The reply follows once all
/// are closed.
/// - attach of the backend that is attached: another configuration of the store in use. Every rank
/// prepares it; if all succeed, all adopt it, at moments of their own, because the trees know only
/// that L3 is attached.
attachment_actor::behavior_type
attachment(attachment_actor::stateful_pointer<attachment_state> self, attachment_options options,
           attachment_peers peers);

} // namespace hicache
