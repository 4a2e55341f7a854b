#pragma once

#include "cache/oplog/op_log.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <memory>
#include <ostream>
#include <string>

namespace hicache {

/// @relates op_recorder
struct op_recorder_state {
  static inline constexpr auto name = "op_recorder";

  explicit op_recorder_state(op_recorder_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<atom::ok> record(const op_log_batch_ptr& batch);

  // -- internal steps ---------------------------------------------------------

  /// Writes and flushes, so that a rank that dies leaves all that it did. Gives up at the first
  /// failure, with one line in the log.
  result<void> write(const std::string& lines);

  // -- data -------------------------------------------------------------------

  op_recorder_actor::pointer self;
  /// For people.
  std::string file_name;
  /// Null once it took no more.
  std::unique_ptr<std::ostream> file;
};

/// Writes the op log of one rank. Told to exit, it first writes what was sent before.
/// @param file_name What to call the file in messages.
/// @param file Empty; must not be null.
/// @param options The options of the tree: the first line.
op_recorder_actor::behavior_type
op_recorder(op_recorder_actor::stateful_pointer<op_recorder_state> self,
            const std::string& file_name, std::unique_ptr<std::ostream> file,
            const tree_options& options);

} // namespace hicache
