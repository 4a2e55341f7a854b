#pragma once

#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <deque>

namespace hicache {

/// @relates backup
struct backup_state {
  static inline constexpr auto name = "backup";

  explicit backup_state(backup_actor::pointer owner) : self(owner) {}

  void enqueue(const backup_command& command);

  /// Sends the next batch of the oldest command, if none is under way.
  void send_next();

  /// Takes the outcome of the batch that began at `first`.
  void finish_batch(uint64_t count, const storage_outcome& outcome);

  /// Ends the oldest command.
  void finish_command();

  backup_actor::pointer self;
  storage_actor storage;
  caf::timespan timeout{};
  uint64_t page_bytes = 0;

  /// A command and whom to tell. Bounded by the pages of L2, which the tree locks until the command
  /// is done.
  struct pending {
    backup_command command;
    tree_actor tree;
  };

  std::deque<pending> queue;
  /// Pages of the oldest command that are stored already.
  uint64_t stored = 0;
  bool busy = false;
  rank_counters counters;
};

/// Writes pages from L2 to L3, in issue order, parents before children: after a failed page the
/// rest of its command is given up, because no child may be stored over a missing parent.
/// @param timeout What one batch may take.
/// @param page_bytes Bytes of one page on this rank, for the counters.
backup_actor::behavior_type backup(backup_actor::stateful_pointer<backup_state> self,
                                   storage_actor storage, caf::timespan timeout,
                                   uint64_t page_bytes);

} // namespace hicache
