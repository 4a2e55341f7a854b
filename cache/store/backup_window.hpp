#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/operations.hpp"
#include "messages/storage_batch.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hicache {

/// Which pages go to L3 next, and what becomes of commands whose pages fail. Values in, values out:
/// the owner carries the batches and keeps the time.
///
/// A command is a chain of pages, each the child of the one before; commands do not depend on each
/// other. Up to limits::storage_batches_in_flight batches are under way: of several commands, and
/// of one command only if the store orders writes. No page is given to the store before its parent
/// is there or, with such a store, under way.
///
/// After a failure nothing is sent for a while; then the command goes on with the page that failed.
/// A command is given up after limits::backup_attempts failures in a row. From then on, until a
/// write succeeds, one failure is enough.
class backup_window {
public:
  struct batch {
    operation_id id = 0;
    uint64_t first = 0;
    uint64_t count = 0;
  };

  /// A command that has ended with its first `stored` pages in L3.
  struct end {
    operation_id id = 0;
    uint64_t stored = 0;
    /// The store may still read its pages. Another end follows when it does not.
    bool is_in_quarantine = false;

    friend bool operator==(const end&, const end&) = default;
  };

  /// What the owner does after a batch.
  struct verdict {
    /// Call `resume` with `pauses` after this time.
    std::optional<duration> pause;
    /// The first command since a write succeeded was given up, for this reason: worth a warning.
    std::optional<ec> warning;
  };

  /// @pre pages > 0; the id is new
  void enqueue(operation_id id, uint64_t pages);

  /// Ends a command as soon as nothing of it is under way. An unknown one has ended.
  void drop(operation_id id);

  /// Ends all commands, since there is no store. @pre nothing is under way
  void drop_all();

  /// @param orders_writes store_capabilities::orders_writes
  /// @returns a batch that the owner gives to the store now; nothing if none may be sent
  std::optional<batch> next(bool orders_writes);

  /// Takes the outcome of a batch.
  /// @param is_late The store has not finished it: `returned` follows.
  verdict finish(const batch& sent, const storage_outcome& outcome, bool is_late);

  /// The store has finished a late batch.
  void returned(const batch& sent);

  /// A pause is over, unless another one has begun since.
  void resume(uint64_t pause);

  /// The number of the latest pause.
  uint64_t pauses() const noexcept { return pauses_; }

  /// The commands that ended since the last call.
  std::vector<end> take_ends() { return std::exchange(ends_, {}); }

  /// True if no command is open and no late batch is under way.
  bool is_idle() const noexcept { return commands_.empty(); }

  /// Pages stored that this rank wrote itself, so far.
  uint64_t written() const noexcept { return written_; }

  /// What is counted here: storage_failures, dropped_backups and backup_retries.
  const rank_counters& counters() const noexcept { return counters_; }

private:
  /// What a batch stored: its first pages, and why no more.
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
    /// Batches that the store has, late ones included.
    uint64_t in_flight = 0;
    uint32_t failures = 0;
    /// A page failed: nothing more is sent until all batches have returned.
    bool has_failed = false;
    /// Nothing more is sent; it ends when its batches have returned.
    bool is_over = false;
    bool counts_as_dropped = false;
    bool is_in_quarantine = false;
    /// Batches that returned before one in front of them, by their first page.
    std::map<uint64_t, part> early = {};
  };

  using commands = std::deque<command>;

  commands::iterator find(operation_id id);

  /// Moves a command forward by what its batches stored.
  verdict advance(command& x);

  verdict fail(command& x, ec code);

  void end_in_quarantine(command& x);

  /// Ends a command, or lets it go on, once all of its batches have returned.
  void settle(commands::iterator entry);

  /// Bounded by the tree, which drops the oldest.
  commands commands_;
  /// Batches that the store has, without late ones.
  uint64_t in_flight_ = 0;
  bool is_pausing_ = false;
  uint64_t pauses_ = 0;
  /// True after a command was given up, until a write succeeds.
  bool is_store_failing_ = false;
  std::vector<end> ends_;
  uint64_t written_ = 0;
  rank_counters counters_;
};

} // namespace hicache
