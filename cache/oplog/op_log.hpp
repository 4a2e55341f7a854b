#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "hicache/error.hpp"
#include "messages/commands.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The op log: everything that decided the state of one rank's cache, so that a bug can be seen
/// again. Text is JSON, one entry a line; the first line holds the options (`docs/oplog.md`).
namespace hicache {

/// A step as one rank applied it.
struct applied_step {
  step_facts facts;
  /// This rank's host pages of each element of `facts.fetches`; null where that is not finished.
  /// They differ between ranks.
  std::vector<page_list> arrived;
};

/// The cache was told to stop serving hits.
struct serving_stopped {};

using op_log_event
  = std::variant<tree_options, tree_operation, applied_step, storage_change, serving_stopped>;

/// One line of a log.
struct op_log_entry {
  op_log_event event;
  /// The cache's digest after the event, if it was recorded.
  std::optional<uint64_t> digest;
};

/// What a recorder is given at a time.
struct op_log_batch {
  std::vector<op_log_entry> entries;
};

/// Without a line break.
/// @pre Buffers of operations are not null.
/// @relates op_log_entry
std::string to_line(const op_log_entry& entry);

/// Reads what to_line wrote. Strict: a key that is unknown, missing or of another type is an error.
/// @returns malformed_message if the line is no JSON object, invalid_argument for what it holds.
result<op_log_entry> parse_op_log_entry(std::string_view line);

/// Reads a whole log.
/// @returns the first error, with the number of its line in front.
result<std::vector<op_log_entry>> parse_op_log(std::string_view text);

/// True if two ranks' entries say the same: host page numbers and missing digests do not count.
/// @relates op_log_entry
bool agree(const op_log_entry& a, const op_log_entry& b);

/// A digest as people see it: sixteen hexadecimal digits.
std::string digest_to_text(uint64_t digest);

/// Applies the entries of one log, in order, to a cache of its own. Copies and fetches are not done
/// again: the steps say what became of them.
class op_log_player {
public:
  /// @returns the digest after the entry; ranks_diverged if another one was recorded;
  /// invalid_argument for an entry that no recording can hold at this place (then the player is of
  /// no further use). The sentence begins with the number of the line.
  result<uint64_t> play(const op_log_entry& entry);

  /// Null before the first entry.
  const prefix_cache* cache() const noexcept { return cache_.get(); }

private:
  result<void> perform(const tree_options& options);
  result<void> perform(const tree_operation& operation);
  result<void> perform(const applied_step& step);
  result<void> perform(const storage_change& change);
  result<void> perform(const serving_stopped& stop);

  /// Why this step cannot have happened, if so.
  result<void> check(const applied_step& step) const;
  void take_effects();

  std::unique_ptr<prefix_cache> cache_;
  uint64_t line_ = 0;
  /// Copies begun so far, and finished in the last step.
  step_facts issued_;
  step_facts known_;
  /// Pages of each open backup.
  std::map<operation_id, uint64_t> backups_;
  /// Host pages that the prefetcher has, and the pages that each open fetch may bring.
  std::set<page_index> reserve_;
  std::map<fetch_id, uint64_t> fetches_;
};

/// Plays a whole log.
/// @returns the digest after each entry, or the first error of the player.
result<std::vector<uint64_t>> replay(std::span<const op_log_entry> entries);

} // namespace hicache
