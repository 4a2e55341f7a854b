#pragma once

#include "hicache/config.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Handing the KV of a prompt from the instance that computes it (prefill) to the one that decodes,
/// layer by layer while it is computed. The two may have different numbers of ranks. The engines
/// carry short messages from the prefill instance to every rank of the decode instance, in order:
/// lines of JSON without the line end. Bytes go directly from rank to rank, through mapped memory
/// on one machine, else by UCX or TCP. The receiver reads them; each page is fenced by a generation
/// and verified by a checksum, so that nothing stale or damaged counts as arrived.
/// docs/integrating.md has the sequence.
namespace hicache {

class rank_runtime;

/// A handoff to begin on a prefill instance.
struct handoff_request {
  /// Chosen by the engine, equal on all ranks, unique among open handoffs.
  uint64_t handoff = 0;
  /// Pages of the prompt that the receiver has already.
  uint64_t first_page = 0;
  /// Tokens of the prompt. The last page may be partly filled.
  uint64_t tokens = 0;
  uint32_t receiver_ranks = 0;
};

/// The sending side on one rank of a prefill instance. Every rank calls `open` and `close` with the
/// same arguments in the same order; they then give the same answers. One thread at a time.
class handoff_sender {
public:
  /// Allocates memory that receivers can read, and serves them. Collective.
  /// @param runtime Must outlive the sender. The CPU must be able to address its L1.
  /// @param bytes Memory per rank for pages until receivers have read them.
  /// @returns unsupported if L1 is not addressable; an error with a sentence if memory or sockets
  /// are missing
  static result<std::unique_ptr<handoff_sender>> start(rank_runtime& runtime,
                                                       const rank_config& config, uint64_t bytes);

  virtual ~handoff_sender() = default;

  /// Reserves memory for a handoff.
  /// @returns the first message for the receiver; limit_reached while others occupy the memory: try
  /// again after a `close`; invalid_argument with a sentence if it can never be
  virtual result<std::string> open(const handoff_request& wanted) = 0;

  /// Copies the pages of a layer that are complete and not yet copied.
  /// @param pages All pages of the prompt so far, in L1.
  /// @param tokens Tokens of the prompt whose KV of this layer is in them.
  /// @pre the handoff is open
  virtual void stage(uint64_t handoff, uint32_t layer, std::span<const page_index> pages,
                     uint64_t tokens)
    = 0;

  /// The message that tells the receiver how many pages of a layer it can read. To be sent once all
  /// ranks have returned from `stage`.
  /// @pre the handoff is open
  virtual std::string announce(uint64_t handoff, uint32_t layer) const = 0;

  /// Ends a handoff, finished or not, and frees its memory; what a receiver reads later does not
  /// verify. No effect if it is not open.
  virtual void close(uint64_t handoff) = 0;

  /// Memory of open handoffs, in bytes. Any thread.
  virtual uint64_t used_bytes() const noexcept = 0;
};

/// The last message of a handoff whose pages were all announced.
/// @param first The first token after the prompt.
std::string handoff_end(token_id first);

/// The last message of a handoff that cannot complete.
/// @param why A sentence.
std::string handoff_failure(const std::string& why);

/// How far a handoff has come on a rank.
struct handoff_state {
  /// Pages times layers that are still missing.
  uint64_t missing = 0;
  /// The first token after the prompt, once the sender has told it.
  std::optional<token_id> first_token{};
  /// Why it cannot complete; code `none` while it can.
  error failure{};
};

/// The receiving side on one rank of a decode instance. Any thread.
class handoff_receiver {
public:
  /// @param runtime Must outlive the receiver. The CPU must be able to address its L1.
  /// @param changed Called on a thread of the receiver when all that a handoff lacks has arrived,
  /// or it has failed. Must not block.
  /// @returns unsupported if L1 is not addressable; io_failure
  static result<std::unique_ptr<handoff_receiver>>
  start(rank_runtime& runtime, const rank_config& config, std::function<void()> changed);

  virtual ~handoff_receiver() = default;

  /// Begins to receive. No effect if it is open.
  /// @param handoff Chosen by this engine, equal on all ranks.
  /// @param tokens Of the prompt.
  /// @param pages L1 pages of the whole prompt. Those from `first_page` on belong to the handoff
  /// until `close`.
  virtual void open(uint64_t handoff, uint64_t first_page, uint64_t tokens,
                    std::span<const page_index> pages)
    = 0;

  /// Takes a message of the sender. One that is wrong fails the handoff. No effect if it is not
  /// open.
  virtual void hear(uint64_t handoff, std::string_view message) = 0;

  /// @pre the handoff is open
  virtual handoff_state state(uint64_t handoff) const = 0;

  /// Ends a handoff, finished or not. Afterwards nothing writes to its pages. Waits for a read in
  /// progress, at most about a second. No effect if it is not open.
  virtual void close(uint64_t handoff) = 0;
};

/// A prefill instance sends an empty line at least so often, so that silence means its end.
inline constexpr auto handoff_beat = std::chrono::milliseconds{100};

/// A handoff without a message for so long has failed; and so long after its last message the
/// sender keeps the pages.
inline constexpr auto handoff_patience = std::chrono::seconds{10};

/// What a decode instance asks a prefill instance by HTTP.
struct handoff_question {
  /// HOST:PORT.
  std::string address;
  /// Path and JSON body of the POST. The answer's body is the handoff's messages, one a line, and
  /// empty lines.
  std::string path;
  std::string body;
};

/// Asks a prefill instance, and passes on its messages; the last one may be its failure. Closing
/// the connection tells the prefill instance that the handoff is over. Blocks.
/// @param is_over Waits up to the given time until the handoff is over, and returns whether to
/// close the connection. Called at least every `handoff_beat`.
void ask_for_handoff(const handoff_question& question, const std::function<void(std::string)>& take,
                     const std::function<bool(std::chrono::milliseconds)>& is_over);

} // namespace hicache
