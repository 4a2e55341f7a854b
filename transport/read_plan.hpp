#pragma once

#include "base/page_checksum.hpp"
#include "hicache/error.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_messages.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// What a client thinks of a server when it begins to read.
enum class server_standing : uint8_t {
  good,
  /// Another one was faster a moment ago: asked if nobody else is left.
  late,
  /// It delivered nothing a moment ago: not asked.
  avoided,
};

/// A range, or a part of it, in one message.
struct range_piece {
  size_t range = 0;
  size_t place = 0;
  /// From the start of the range.
  size_t begin = 0;
  size_t length = 0;
  /// Where its bytes go: on from byte `skip` of the first of these.
  std::span<const std::span<std::byte>> targets;
  size_t skip = 0;
};

/// One request to a server: a span for each piece.
struct planned_message {
  std::vector<page_span> spans;
  std::vector<range_piece> pieces;
};

/// Who is asked for which ranges when, and what became of them: the decisions of a page_client,
/// without clocks and connections. Each range is asked for at one place; at the next one when that
/// fails or is late. Of two places that deliver the same range, the one that is done first counts,
/// and the bytes of a range never come from two places. Not thread-safe.
class read_plan {
public:
  /// @param ranges Not owned.
  /// @param standing Of each server that the ranges name.
  /// @param exports As for page_client::create.
  read_plan(std::span<const remote_range> ranges, std::vector<server_standing> standing,
            bool exports);

  /// True if every range was read or has failed at all of its places.
  bool is_over() const noexcept { return open_ == 0; }

  /// True if there is something to ask the server for.
  bool has_next(size_t server);

  /// What the server is to be asked for next, up to limits::transfer_bytes: large pieces one by
  /// one, so that the server need not gather them, small ones together.
  /// @pre has_next(server)
  planned_message next(size_t server);

  /// Where the data of the message's reply may be received, to be delivered from there without a
  /// copy: its targets, if they are one run of memory and nobody else is asked for the range.
  /// @returns empty if the data must come elsewhere
  std::span<std::byte> target_of(const planned_message& message) const;

  /// A reply arrived: takes what is wanted of it to where it is wanted.
  /// @param data From wherever they were received.
  /// @returns malformed_message if it is no answer to the message; then nothing was done
  result<void> deliver(const planned_message& message, std::span<const std::byte> header,
                       std::span<const std::byte> data);

  /// The message will not be answered.
  void fail(const planned_message& message, const error& why);

  /// The server will not be asked any more; nor will it answer.
  void fail_server(size_t server, const error& why);

  /// The server is late: asks the next place for each range that waits for it and has one.
  /// @returns whether there was such a range
  bool hedge(size_t server);

  /// Ends what is open with this.
  /// @returns what became of each range
  std::vector<result<range_answer>> finish(const error& why);

private:
  struct progress {
    size_t length = 0;
    /// A bit for each place.
    uint64_t begun = 0;
    uint64_t failed = 0;
    /// The place asked last.
    size_t last = 0;
    /// The place whose bytes are in the targets, and how many.
    size_t source = 0;
    size_t arrived = 0;
    bool is_over = false;
    bool in_demand = false;
    bool is_gone = false;
    range_head head = {};
    /// Of the bytes that arrived in order.
    std::optional<running_checksum> sum;
    size_t summed = 0;
    error failure;
  };

  /// A range that a server is still to be asked for, from `piece.length` 0 on.
  struct line_entry {
    range_piece rest;
    size_t left = 0;
  };

  /// Asks the best place not asked yet; ends the range if all have failed.
  void begin_next(size_t range);

  void fail_place(size_t range, size_t place, const error& why);

  void end(progress& which);

  /// The place of a piece holds another page. Its reader has to know, since the owner may not.
  void end_gone(const range_piece& piece);

  /// Takes a piece's bytes, if its place can still be the one that the range comes from.
  void take(const range_piece& piece, const span_answer& answer, std::span<const std::byte> bytes);

  /// Of a range that is there.
  uint64_t checksum_of(size_t range);

  std::span<const remote_range> ranges_;
  std::vector<server_standing> standing_;
  bool exports_;
  std::vector<progress> progress_;
  std::vector<std::deque<line_entry>> lines_;
  size_t open_ = 0;
};

} // namespace hicache
