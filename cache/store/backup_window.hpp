#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/operations.hpp"
#include "hicache/storage_policies.hpp"
#include "messages/storage_batch.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hicache {

/// Decides which pages go to L3 next, and what happens to commands whose pages fail. Values in,
/// values out: the owner sends the batches and keeps the time.
///
/// A command is a chain of pages, each the child of the one before; commands are independent of
/// each other. Up to storage_traffic::batches_in_flight batches are in flight: of several commands,
/// and of one command only if the store orders writes. No page is sent before its parent is stored
/// or, with such a store, in flight.
///
/// After a failure nothing is sent for a pause; then the command continues with the failed page. A
/// command is abandoned after storage_traffic::backup_attempts consecutive failures, and from then
/// on, until a write succeeds, after a single failure.
class backup_window {
public:
  struct batch {
    operation_id id = 0;
    uint64_t first = 0;
    uint64_t count = 0;
  };

  /// A command that ended with its first `stored` pages in L3.
  struct end {
    operation_id id = 0;
    uint64_t stored = 0;
    /// The store may still read its pages; another end follows once it does not.
    bool is_in_quarantine = false;

    friend bool operator==(const end&, const end&) = default;
  };

  /// What the owner does after a batch.
  struct verdict {
    /// Call `resume` with `pauses` after this time.
    std::optional<duration> pause;
    /// Why a command was abandoned, the first one since the last successful write: log a warning.
    std::optional<ec> warning;
  };

  explicit backup_window(const storage_traffic& traffic = {}) : traffic_(traffic) {}

  /// @pre pages > 0; the id is new
  void enqueue(operation_id id, uint64_t pages);

  /// Ends a command once none of its batches is in flight. Ignores unknown ids: those have ended.
  void drop(operation_id id);

  /// Ends all commands because there is no store.
  /// @pre nothing is in flight
  void drop_all();

  /// @param orders_writes store_capabilities::orders_writes
  /// @returns the batch to send now; nothing if none may be sent
  std::optional<batch> next(bool orders_writes);

  /// Handles the outcome of a batch.
  /// @param is_late The store has not finished it: `returned` follows.
  verdict finish(const batch& sent, const storage_outcome& outcome, bool is_late);

  /// The store has finished a late batch.
  void returned(const batch& sent);

  /// Ends a pause, unless another one has begun since.
  void resume(uint64_t pause);

  /// The number of the latest pause.
  uint64_t pauses() const noexcept { return pauses_; }

  /// Takes the commands that ended since the last call.
  std::vector<end> take_ends() { return std::exchange(ends_, {}); }

  /// True if no command is open and no late batch is in flight.
  bool is_idle() const noexcept { return commands_.empty(); }

  /// Pages stored so far that this rank wrote itself.
  uint64_t written() const noexcept { return written_; }

  /// Counts only storage_failures, dropped_backups and backup_retries.
  const rank_counters& counters() const noexcept { return counters_; }

private:
  /// What a batch stored: the number of its first good pages, and the error that stopped it.
  struct part {
    uint64_t good = 0;
    ec code = ec::none;
  };

  struct command {
    operation_id id = 0;
    uint64_t pages = 0;
    uint64_t stored = 0;
    /// Pages given to the store so far.
    uint64_t sent = 0;
    /// Batches that the store has, including late ones.
    uint64_t in_flight = 0;
    uint32_t failures = 0;
    /// A page failed: nothing more is sent until all batches have returned.
    bool has_failed = false;
    /// Nothing more is sent; ends when its batches have returned.
    bool is_over = false;
    bool counts_as_dropped = false;
    bool is_in_quarantine = false;
    /// Batches that returned before a preceding one, by their first page.
    std::map<uint64_t, part> early = {};
  };

  using commands = std::deque<command>;

  commands::iterator find(operation_id id);

  /// Advances a command by what its batches stored.
  verdict advance(command& x);

  verdict fail(command& x, ec code);

  void end_in_quarantine(command& x);

  /// Ends or resumes a command once all of its batches have returned.
  void settle(const commands::iterator& entry);

  storage_traffic traffic_;
  /// Bounded by the tree, which drops the oldest.
  commands commands_;
  /// Batches that the store has, excluding late ones.
  uint64_t in_flight_ = 0;
  bool is_pausing_ = false;
  uint64_t pauses_ = 0;
  /// True from the time a command is abandoned until a write succeeds.
  bool is_store_failing_ = false;
  std::vector<end> ends_;
  uint64_t written_ = 0;
  rank_counters counters_;
};

} // namespace hicache
