#pragma once

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
  bool lends_host = false;
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
  tree_actor tree;
  prefetcher_actor prefetcher;
  backup_actor backup;
  consensus_actor ranks;
};

/// @relates attachment
struct attachment_state {
  static inline constexpr auto name = "attachment";

  explicit attachment_state(attachment_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<atom::ok> change(const storage_attachment& wanted, caf::timespan time);

  caf::result<atom::ok> end();

  // -- internal steps ---------------------------------------------------------

  /// A request as all ranks know it.
  struct request {
    storage_attachment wanted;
    caf::timespan time{};
    bool is_end = false;
  };

  using next_step = std::function<void(const result<std::vector<int64_t>>&)>;

  /// Waits for the next request of rank 0; on rank 0: for somebody who asks.
  void listen();

  /// Makes a request known to all ranks.
  void announce(const request& what);

  /// All ranks know the request.
  void begin(const request& what);

  void begin_attach(const request& what);

  void begin_detach(const request& what);

  /// Nothing is under way on this rank any more, or the time is over.
  void finish_detach(caf::timespan time, const result<void>& drained);

  /// Asks an actor; without a time: for ever.
  template <class Handle, class... Args>
  auto ask(const Handle& whom, std::optional<caf::timespan> time, const Args&... args);

  /// @param time How long to wait for the other ranks; nothing: for ever.
  void reduce(std::vector<int64_t> values, std::optional<caf::timespan> time, next_step next);

  /// Goes on with success if all ranks succeeded, else with the error of the lowest that failed.
  void agree(const result<void>& mine, caf::timespan time,
             std::function<void(const result<void>&)> next);

  /// All ranks' trees apply a change before the same step.
  /// @param on_agreed The step is known on all ranks.
  /// @param on_applied This rank's tree applied it, or did not within `time`.
  void commit(const storage_change& change, std::function<void()> on_agreed,
              std::optional<caf::timespan> time,
              std::function<void(const result<void>&)> on_applied);

  void conclude(const result<void>& outcome);

  storage_change attach_change() const;

  // -- data -------------------------------------------------------------------

  attachment_actor::pointer self;
  attachment_options options;
  attachment_peers peers;
  /// Rank 0: who asked.
  std::optional<caf::typed_response_promise<atom::ok>> asking;
  std::vector<caf::typed_response_promise<atom::ok>> ending;
  bool is_over = false;
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
