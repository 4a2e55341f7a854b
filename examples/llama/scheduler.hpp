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
  /// Sequences that hicache knows at once: that look for their prefixes, or are computed.
  uint64_t max_running = 32;
  /// Longest sequence of the model, in tokens.
  uint64_t positions = 0;
  std::vector<uint32_t> end_tokens;
};

/// A completion under way.
struct sequence {
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

  /// Tokens whose KV is in the pages at the end of this pass.
  uint64_t tokens_after_pass() const { return computed_tokens + pass_tokens; }

  bool is_decoding() const { return computed_tokens + 1 == tokens.size(); }

  /// Whether nobody has to agree to receive its KV first.
  bool may_compute() const { return is_open || request.receiver_ranks == 0; }

  /// It waits for its KV from another instance.
  bool is_receiving() const { return now == state::receiving; }

  /// It has room, and waits for a receiver of its KV.
  bool awaits_receiver() const { return now == state::running && !may_compute(); }

  /// Its KV is handed over, some of it in this pass.
  bool is_handed_over() const { return is_open && pass_tokens > 0; }

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
  /// Of the prompt, when it had room for the first time.
  std::optional<uint64_t> cached_tokens;
  /// Tokens that were given out.
  size_t told = 0;
  /// Prefill instances that were asked in vain.
  uint64_t attempt = 0;
  uint64_t handed_tokens = 0;
  /// Its receiver can read it; and what it read is no longer valid.
  bool is_open = false;
  bool is_revoked = false;
};

/// Continuous batching with chunked prefill: decides what each turn asks of hicache and which
/// tokens it computes. Values in, values out, so that equal inputs and answers lead all ranks to
/// the same decisions. Not thread-safe.
///
/// A turn calls the functions in their order here. Each list of operations is applied, and its
/// answers are given to answered() before the next function is called.
class scheduler {
public:
  using operations = std::vector<hicache::tree_operation>;
  using sequence_list = std::vector<const sequence*>;

  explicit scheduler(scheduler_options options) : options_(std::move(options)) {}

  /// Takes the answers to the last list of operations.
  void answered(const hicache::tree_answers& answers);

  // -- 1. what arrived ----------------------------------------------------------

  /// What rank 0 tells all ranks. After the last input nothing is added, and all completions end.
  void take(const turn_input& input);

  /// Releases what ended, and looks up the prefixes of those that wait.
  operations open();

  // -- 2. room --------------------------------------------------------------------

  /// Loads and allocates for sequences that can run, and for those that need another page.
  operations make_room();

  // -- handoffs -------------------------------------------------------------------

  /// Sequences for which a function answers true.
  sequence_list list(bool (sequence::*is_wanted)() const) const;

  /// A receiver can read the prompt now.
  void open_handoff(completion_id id) { find_completion(id)->is_open = true; }

  /// Ends a completion that cannot be.
  void fail(completion_id id, std::string why) {
    end(find_completion(id), finish_reason::failed, std::move(why));
  }

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
  bool has_ended() const { return is_last_ && is_idle(); }

  /// Whether a turn has nothing to do until something is heard of handoffs, if there are any.
  bool is_idle() const;

private:
  using state = sequence::state;
  using place = std::list<sequence>::iterator;
  using answers_of_group = std::span<const hicache::tree_answer>;
  using continuation = std::function<void(answers_of_group)>;

  /// A streaming session of hicache.
  struct conversation {
    /// 0 while it is being opened.
    uint64_t generation = 0;
    /// Number of its last turn.
    hicache::request_id last_turn = 0;
  };

  /// Adds operations to the next list.
  void ask(operations wanted, continuation then);

  void open_session(hicache::session_id session);

  void look_up(sequence& which);

  void ask_for_room(sequence& which);

  void ask_for_page(sequence& which);

  place find_completion(completion_id id);

  /// Asks the next prefill instance for what the sequence lacks, if there is one and it is worth
  /// it.
  void seek(sequence& which);

  /// Whether a session is open, and none of its turns is.
  bool is_between_turns(hicache::session_id session) const;

  void close_session(hicache::session_id session);

  /// Closes the session that has been idle for longest, because what sessions keep is not evicted.
  /// @returns false if there is none
  bool close_idle_session();

  /// Sequences in the order in which they should run.
  std::vector<sequence*> in_order();

  /// Releases a sequence's pages and has it wait again.
  void restart(sequence& which);

  void end(place which, finish_reason why, std::string error = {});

  /// Whether it has all the tokens that it should have, and why these are all.
  finish_reason finish_of(const sequence& which) const;

  /// Whether the page of the next token is missing.
  bool needs_page(const sequence& which) const;

  /// No sequence could run: makes room by restarting another one, or gives up.
  void handle_shortage();

  /// Gives out new tokens, and ends the sequence if it is complete.
  void tell(place which);

  /// Adds an output of a sequence.
  completion_output& output_of(const sequence& which);

  const scheduler_options options_;
  std::list<sequence> sequences_;
  hicache::request_id last_number_ = 0;
  operations list_;
  /// Sizes of groups of its operations, and what to do with the answers to each group; sequences
  /// live until then.
  std::vector<std::pair<size_t, continuation>> questions_;
  /// Requests of hicache to release, and sessions to close.
  std::vector<hicache::request_id> released_;
  std::vector<hicache::session_ref> closed_;
  std::map<hicache::session_id, conversation> sessions_;
  /// The last list opens sessions.
  bool opens_sessions_ = false;
  /// Sequences of the slices.
  std::vector<sequence*> in_pass_;
  std::vector<completion_id> dropped_;
  /// As scheduler_options::max_running; fewer while pages are short.
  uint64_t open_limit_ = options_.max_running;
  bool is_short_ = false;
  /// As in pass_result, of the last pass.
  void* after_ = nullptr;
  uint64_t short_turns_ = 0;
  /// The last input was taken.
  bool is_last_ = false;
  std::vector<completion_output> outputs_;
};

} // namespace llama
