#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "hicache/error.hpp"
#include "messages/commands.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The op log: everything that determined the state of one rank's cache, so that bugs can be
/// reproduced. JSON lines; the first line holds the options (`docs/oplog.md`).
namespace hicache {

/// A step as one rank applied it.
struct applied_step {
  step_facts facts;
  /// This rank's L2 pages of each element of `facts.fetches`; null if unfinished. Differs by rank.
  std::vector<page_list> arrived;
};

/// The cache stopped serving hits.
struct serving_stopped {};

using op_log_event
  = std::variant<tree_options, tree_operation, applied_step, storage_change, serving_stopped>;

/// One line of a log.
struct op_log_entry {
  op_log_event event;
  /// The cache's digest after the event, if recorded.
  std::optional<uint64_t> digest;
};

/// What a recorder receives at a time.
struct op_log_batch {
  std::vector<op_log_entry> entries;
};

/// Without a line break.
/// @pre buffers of operations are not null
/// @relates op_log_entry
std::string to_line(const op_log_entry& entry);

/// Parses the output of to_line. Strict: unknown or missing keys and wrong types are errors.
/// @returns malformed_message if the line is no JSON object, invalid_argument for its content.
result<op_log_entry> parse_op_log_entry(std::string_view line);

/// True if two ranks' entries agree; ignores L2 page numbers and missing digests.
/// @relates op_log_entry
bool agree(const op_log_entry& a, const op_log_entry& b);

/// A digest as sixteen hexadecimal digits.
std::string digest_to_text(uint64_t digest);

/// Applies the entries of one log, in order, to its own cache. Does not repeat copies and fetches:
/// the steps contain their outcomes.
class op_log_player {
public:
  /// @returns the digest after the entry; ranks_diverged if it differs from the recorded one;
  /// invalid_argument for an entry that cannot occur at this point (the player is unusable
  /// afterwards). Messages begin with the line number.
  result<uint64_t> play(const op_log_entry& entry);

  /// Null before the first entry.
  const prefix_cache* cache() const noexcept { return cache_.get(); }

private:
  void perform(const applied_step& step);

  /// Returns an error if this step is impossible in the current state.
  result<void> check(const applied_step& step) const;
  void take_effects();

  std::unique_ptr<prefix_cache> cache_;
  uint64_t line_ = 0;
  /// Copies begun so far, and facts of the last step.
  step_facts issued_;
  step_facts known_;
  /// Pages of each open backup.
  std::map<operation_id, uint64_t> backups_;
  /// Staging pool of the prefetcher, and the pages that each open fetch may bring.
  std::set<page_index> staging_;
  std::map<fetch_id, uint64_t> fetches_;
};

} // namespace hicache
