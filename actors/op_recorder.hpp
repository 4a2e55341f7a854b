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

  /// Writes and flushes, so that the log is complete if the rank dies. Stops at the first failure
  /// and logs it once.
  result<void> write(const std::string& lines);

  // -- data -------------------------------------------------------------------

  op_recorder_actor::pointer self;
  /// For log messages.
  std::string file_name;
  /// Null after a failed write.
  std::unique_ptr<std::ostream> file;
};

/// Writes the op log of one rank. On exit, writes everything received before.
/// @param file_name Name of the file in messages.
/// @param file Empty; must not be null.
/// @param options The options of the tree: the first line.
op_recorder_actor::behavior_type
op_recorder(op_recorder_actor::stateful_pointer<op_recorder_state> self,
            const std::string& file_name, std::unique_ptr<std::ostream> file,
            const tree_options& options);

} // namespace hicache
