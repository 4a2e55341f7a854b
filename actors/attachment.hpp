#pragma once

#include "cache/step/attachment_machine.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hicache {

/// A store that is open, with what the tree has to know of it.
struct open_store {
  storage_actor actor;
  prefetch_settings prefetch;
  /// As of storage_change.
  bool exports_l2 = false;
  /// Ends the actor and gives back what the store holds. Blocks.
  std::function<void()> close;
};

/// Opens a store on this rank; blocks. Checks the request as the flags of the same names are
/// checked.
/// @returns invalid_argument with one sentence, or why the store cannot be opened
using store_opener = std::function<result<open_store>(const storage_attachment&)>;

/// Fixed settings of an attachment.
struct attachment_options {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  store_opener open;
  /// What is attached from the start; without an actor: nothing.
  storage_attachment attached;
  open_store store;
  /// How long ranks wait for each other's word beyond the deadline of a request.
  caf::timespan patience{};
};

/// Whom an attachment has to do with.
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
  /// @param wait For the other ranks; nothing: for ever.
  template <class Next>
  void reduce(std::vector<int64_t> values, std::optional<caf::timespan> wait, Next next);

  /// Brings one rank's texts to all.
  /// @param texts What this rank says; empty if another one speaks.
  template <class Next>
  void broadcast(const std::vector<std::string>& texts, std::optional<caf::timespan> wait,
                 Next next);

  /// Asks an actor; without a time: for ever.
  template <class Handle, class... Args>
  auto ask(const Handle& whom, std::optional<caf::timespan> time, const Args&... args);

  /// Tells the prefetcher and the backup which store to use; null: none.
  void hand_over(const storage_actor& store);

  // -- actions of the machine -------------------------------------------------

  /// Hands an event to the machine and carries out what it decides.
  void handle(const attachment_machine::event& what);

  void carry_out(const std::vector<attachment_machine::action>& actions);

  void act(const attachment_machine::announce& what);
  void act(const attachment_machine::open& what);
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
  void act(const attachment_machine::close_store& what);
  void act(const attachment_machine::answer& what);
  void act(const attachment_machine::end& what);

  // -- data -------------------------------------------------------------------

  attachment_actor::pointer self;
  attachment_options options;
  attachment_peers peers;
  std::optional<attachment_machine> machine; // Set once, by attachment().
  /// Opened, and not in use yet.
  storage_attachment wanted;
  open_store fresh;
  /// Rank 0: who asked for the change that is under way.
  std::optional<caf::typed_response_promise<atom::ok>> asking;
  std::vector<caf::typed_response_promise<atom::ok>> ending;
};

/// Attaches and detaches L3 while the instance runs. Rank 0 is asked; the ranks agree on a
/// communicator of their own, so that a change needs no step to become known, and on the step
/// before which it takes effect:
/// - attach: every rank opens the store; if all could, all trees attach it before the same step.
/// - detach: all trees stop new work before the same step and end what is under way; each rank
/// waits until its store is idle; if all are in time, the trees take the prefetchers' pages back
/// and the stores are closed, else all trees attach again. The answer comes when all are closed.
attachment_actor::behavior_type
attachment(attachment_actor::stateful_pointer<attachment_state> self, attachment_options options,
           attachment_peers peers);

} // namespace hicache
