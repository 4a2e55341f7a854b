#pragma once

#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <deque>
#include <vector>

namespace hicache {

/// @relates backup
struct backup_state {
  static inline constexpr auto name = "backup";

  explicit backup_state(backup_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  void enqueue(const backup_command& command);

  void drop(operation_id id);

  void try_again(uint64_t pause);

  caf::result<atom::ok> drain();

  // -- internal steps ---------------------------------------------------------

  /// Sends the next batch of the oldest command, if none is under way.
  void send_next();

  /// Takes the outcome of the batch of `count` pages that was under way.
  void finish_batch(uint64_t count, const storage_outcome& outcome);

  /// The oldest command failed: tries again later, or gives it up.
  void fail_batch(ec why);

  /// Gives up the oldest command, since its call did not return in time. Its pages are free when
  /// the call has.
  void give_up_late(uint64_t ticket);

  /// Ends the oldest command with what is stored.
  void finish_command();

  void forget_command();

  /// Tells who waits for it that nothing is under way any more, if so.
  void end_drain();

  // -- data -------------------------------------------------------------------

  /// A command and whom to tell.
  struct pending {
    backup_command command;
    tree_core_actor tree;
    bool is_dropped = false;
  };

  backup_actor::pointer self;
  /// Null: nothing is stored.
  storage_actor storage;
  caf::timespan timeout{};
  uint64_t page_bytes = 0;
  /// Bounded by the tree, which drops the oldest.
  std::deque<pending> queue;
  /// Pages of the oldest command that are stored already, and how often its next ones failed.
  uint64_t stored = 0;
  uint32_t failures = 0;
  /// True while a batch is under way; while the oldest command waits to be tried again.
  bool is_busy = false;
  bool is_pausing = false;
  /// Numbers the pauses, so that one that was cut short means nothing.
  uint64_t pauses = 0;
  /// True after a command was given up: until a write succeeds, one attempt each is enough.
  bool is_store_failing = false;
  /// Commands that were given up and whose calls have not returned.
  uint64_t quarantined = 0;
  std::vector<caf::typed_response_promise<atom::ok>> draining;
  rank_counters counters;
};

/// Writes pages from L2 to L3, in issue order, parents before children: what follows a page that
/// could not be written waits until it is, and is given up with it after limits::backup_attempts.
/// @param timeout What one batch may take.
/// @param page_bytes Bytes of one page on this rank, for the counters.
backup_actor::behavior_type backup(backup_actor::stateful_pointer<backup_state> self,
                                   storage_actor storage, caf::timespan timeout,
                                   uint64_t page_bytes);

} // namespace hicache
