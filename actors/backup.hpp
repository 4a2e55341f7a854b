#pragma once

#include "cache/store/backup_window.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <map>
#include <vector>

namespace hicache {

struct backup_options {
  /// Timeout of one batch.
  caf::timespan timeout{};
  /// Bytes of one page on this rank, for the counters.
  uint64_t page_bytes = 0;
  storage_traffic traffic = {};
};

/// @relates backup
struct backup_state {
  static inline constexpr auto name = "backup";

  explicit backup_state(backup_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  void enqueue(const backup_command& command);

  void drop(operation_id id);

  void resume(uint64_t pause);

  void attach(storage_actor store);

  caf::result<atom::ok> drain();

  rank_counters counters() const;

  // -- internal steps ---------------------------------------------------------

  /// Reports finished commands and sends the batches that the window allows.
  void go_on();

  void send(const backup_window::batch& batch);

  void finish(const backup_window::batch& batch, const storage_outcome& outcome);

  // -- data -------------------------------------------------------------------

  /// A command and the tree to notify.
  struct pending {
    backup_command command;
    tree_core_actor tree;
  };

  backup_actor::pointer self;
  backup_options options;
  /// Null: no backups.
  storage_actor storage;
  /// From the store's status; false until it has replied.
  bool orders_writes = false;
  std::map<operation_id, pending> commands;
  backup_window window;
  /// As in operation_done.
  time_point lost{};
  std::vector<caf::typed_response_promise<atom::ok>> draining;
};

/// Writes pages from L2 to L3, parents before children (backup_window).
backup_actor::behavior_type backup(backup_actor::stateful_pointer<backup_state> self,
                                   storage_actor storage, backup_options options);

} // namespace hicache
