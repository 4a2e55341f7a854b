#pragma once

#include "examples/llama/completion.hpp"
#include "examples/llama/transformer.hpp"
#include "hicache/operations.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llama {

struct scheduler_options {
  uint32_t page_size = 64;
  /// Tokens computed in a pass: one of each decoding sequence, and parts of prompts.
  uint64_t pass_tokens = 512;
  /// Sequences computed side by side.
  uint64_t max_running = 16;
  /// Sequences that look for their prefixes, running ones included.
  uint64_t max_open = 32;
  /// Longest sequence of the model, in tokens.
  uint64_t positions = 0;
  std::vector<uint32_t> end_tokens;
};

/// Continuous batching with chunked prefill: decides what each turn asks of hicache and which
/// tokens it computes. Values in, values out, so that equal inputs and answers lead all ranks to
/// the same decisions. Not thread-safe.
///
/// A turn calls the functions in their order here. Each list of operations is applied, and its
/// answers are given to the function that follows it.
class scheduler {
public:
  using operations = std::vector<hicache::tree_operation>;

  explicit scheduler(scheduler_options options) : options_(std::move(options)) {}

  // -- 1. what arrived ----------------------------------------------------------

  void add(completion_request request);

  /// Ends a completion. No effect if there is none.
  void abort(completion_id id);

  /// What rank 0 tells all ranks. After the last input nothing is added, and all completions end.
  void take(const turn_input& input);

  /// Releases what ended, and looks up the prefixes of those that wait.
  operations open();

  void opened(const hicache::tree_answers& answers);

  // -- 2. room --------------------------------------------------------------------

  /// Loads and allocates for sequences that can run, and for those that need another page.
  operations make_room();

  void made_room(const hicache::tree_answers& answers);

  // -- handoffs -------------------------------------------------------------------

  /// A completion whose KV goes to another instance, or comes from one.
  struct handoff {
    completion_id id = 0;
    uint64_t prompt_tokens = 0;
    /// Tokens whose KV is in the pages, at the end of this pass.
    uint64_t computed_tokens = 0;
    std::span<const hicache::page_index> pages;
    /// As in completion_request.
    uint64_t receiver_pages = 0;
    uint32_t receiver_ranks = 0;
    /// As in handoff_event.
    uint64_t attempt = 0;
  };

  /// Prompts that have room, and wait for open_handoff() or fail().
  std::vector<handoff> unopened() const;

  /// A receiver can read the prompt now.
  void open_handoff(completion_id id) { find_completion(id)->is_open = true; }

  /// Ends a completion that cannot be.
  void fail(completion_id id, std::string why);

  /// The prompts of this pass that are handed over; after batch().
  std::vector<handoff> handed_in_pass() const;

  /// Completions that wait for their KV.
  std::vector<handoff> receiving() const;

  /// The KV of the prompt and the first token have come.
  void receive(completion_id id, hicache::token_id first);

  /// They will not: asks the next prefill instance, or computes the prompt here.
  void miss_handoff(completion_id id);

  /// Completions that no longer wait for KV, although it neither came nor failed. Nothing may write
  /// to their pages when open() is called next.
  std::vector<completion_id> take_dropped() { return std::exchange(dropped_, {}); }

  // -- 3. computing ---------------------------------------------------------------

  /// The slices of this pass. They refer to the sequences until `computed`.
  std::vector<slice> batch();

  /// Appends the likeliest token to each sequence that is computed to its end.
  /// @param vocabulary Scores of each row.
  void computed(const pass_result& result, size_t vocabulary);

  /// Inserts what was computed.
  operations insert();

  void inserted(const hicache::tree_answers& answers);

  // -- 4. facts -------------------------------------------------------------------

  /// Notes which requests are ready, and restarts those that lost pages.
  void stepped(const hicache::step_result& facts);

  /// New tokens and ends since the last call. Nothing of a load that failed is among them.
  std::vector<completion_output> take_outputs() { return std::exchange(outputs_, {}); }

  /// Looks up all sequences again, because hicache has lost what it had.
  void restart_all();

  /// Whether the next turn has tokens to compute, or a session that opened for one that waits.
  bool can_compute() const;

  /// Whether this turn is the last one, on all ranks.
  bool has_ended() const noexcept { return is_last_ && is_idle(); }

  /// Whether a turn has nothing to do.
  bool is_idle() const noexcept {
    return sequences_.empty() && released_.empty() && closed_.empty();
  }

  /// The same, until something is heard of the handoffs.
  bool awaits_handoffs() const;

private:
  enum class state : uint8_t {
    /// Not known to hicache.
    waiting,
    /// L3 is asked for its prefix.
    fetching,
    /// It can run as soon as there is room.
    ready,
    /// It has pages, and another instance computes what belongs into them.
    receiving,
    /// It has pages for all of its tokens but the last one.
    running,
  };

  struct sequence {
    completion_request request;
    state now = state::waiting;
    /// Number in hicache, another one after a restart; 0 while it waits.
    hicache::request_id number = 0;
    /// The prompt and what was added.
    std::vector<hicache::token_id> tokens;
    std::vector<hicache::page_index> pages;
    /// Pages that the tree has, so that they do not change any more.
    uint64_t settled_pages = 0;
    /// Tokens whose KV is in the pages, and those of the current pass.
    uint64_t computed_tokens = 0;
    uint64_t pass_tokens = 0;
    hicache::layer_progress_ptr loading;
    uint64_t cached_tokens = 0;
    std::chrono::nanoseconds load_wait{};
    bool is_admitted_once = false;
    /// Tokens that were given out.
    size_t told = 0;
    /// Prefill instances that were asked in vain.
    uint64_t attempt = 0;
    uint64_t handed_tokens = 0;
    /// Its receiver can read it; and what it read is no longer valid.
    bool is_open = false;
    bool is_revoked = false;

    bool is_decoding() const { return computed_tokens + 1 == tokens.size(); }
  };

  using sequence_list = std::list<sequence>;

  /// A streaming session of hicache.
  struct conversation {
    /// 0 while it is being opened.
    uint64_t generation = 0;
    /// Number of its last turn.
    hicache::request_id last_turn = 0;
  };

  sequence* find(hicache::request_id number);

  sequence_list::iterator find_completion(completion_id id);

  static handoff describe(const sequence& which);

  template <class Predicate>
  std::vector<handoff> describe_if(Predicate is_wanted) const;

  /// Asks the next prefill instance for what the sequence lacks, if there is one and it is worth
  /// it.
  void seek(sequence& which);

  bool may_compute(const sequence& which) const;

  uint64_t count(state wanted) const;

  /// Whether a turn of the session is open.
  bool is_in_turn(hicache::session_id session) const;

  /// Closes the session that has been idle for longest, because what sessions keep is not evicted.
  /// @returns false if there is none
  bool close_idle_session();

  /// Sequences in the order in which they should run.
  std::vector<sequence*> in_order();

  /// Releases a sequence's pages and has it wait again.
  void restart(sequence& which);

  void end(sequence_list::iterator which, finish_reason why, std::string error = {});

  hicache::token_buffer computed_part(const sequence& which) const;

  /// Whether it has all the tokens that it should have.
  bool is_complete(const sequence& which) const;

  /// Whether its last token is one at which the model ends.
  bool is_at_end(const sequence& which) const;

  /// Whether the page of the next token is missing.
  bool needs_page(const sequence& which) const;

  void note_room(sequence& which, const hicache::tree_answer& loaded,
                 const hicache::tree_answer& allocated);
  void note_page(sequence& which, const hicache::tree_answer& allocated);

  /// No sequence could run: makes room by restarting another one, or gives up.
  void handle_shortage();

  /// Gives out new tokens, and ends the sequence if it is complete.
  void tell(sequence_list::iterator which);

  const scheduler_options options_;
  sequence_list sequences_;
  hicache::request_id last_number_ = 0;
  /// Requests of hicache to release, and sessions to close.
  std::vector<hicache::request_id> released_;
  std::vector<hicache::session_ref> closed_;
  std::map<hicache::session_id, conversation> sessions_;
  /// Sessions that the last list opens.
  std::vector<hicache::session_id> opening_;
  /// What the operations of the last list belong to.
  std::vector<hicache::request_id> asked_;
  std::vector<hicache::request_id> in_pass_;
  std::vector<completion_id> dropped_;
  /// Whose KV has come from another instance and is not inserted yet.
  std::vector<hicache::request_id> received_;
  /// Only this many may be open, because pages are short.
  std::optional<uint64_t> open_limit_;
  bool is_short_ = false;
  /// As in pass_result, of the last pass.
  void* after_ = nullptr;
  uint64_t short_turns_ = 0;
  /// The last input was taken.
  bool is_last_ = false;
  std::vector<completion_output> outputs_;
};

} // namespace llama
