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

/// A client's rating of a server when a read begins.
enum class server_standing : uint8_t {
  good,
  /// Another server was faster a moment ago: used only if no other is left.
  late,
  /// It delivered nothing a moment ago: not used.
  avoided,
};

/// A range, or a part of one, in one message.
struct range_piece {
  size_t range = 0;
  size_t place = 0;
  /// Offset in the range.
  size_t begin = 0;
  size_t length = 0;
  /// Targets of the bytes, from byte `skip` of the first one.
  std::span<const std::span<std::byte>> targets;
  size_t skip = 0;
};

/// One request to a server, with one span per piece.
struct planned_message {
  std::vector<page_span> spans;
  std::vector<range_piece> pieces;
};

/// The decisions of a page_client, without clocks and connections: which server is asked for which
/// ranges when, and the results. Each range is requested from one place, and from the next one when
/// that fails or is late. If two places deliver a range, the first one to complete counts; the
/// bytes of a range never come from two places. Not thread-safe.
class read_plan {
public:
  /// @param ranges Not owned.
  /// @param standing Rating of each server that the ranges name.
  /// @param exports As for page_client::create.
  read_plan(std::span<const remote_range> ranges, std::vector<server_standing> standing,
            bool exports);

  /// True if every range was read or has failed at all of its places.
  bool is_over() const noexcept { return open_ == 0; }

  /// True if there is something to request from the server.
  bool has_next(size_t server);

  /// The next request for the server, up to limits::transfer_bytes: large pieces alone, so that the
  /// server need not gather them, small ones together.
  /// @pre has_next(server)
  planned_message next(size_t server);

  /// Where to receive the data of the message's reply for delivery without a copy: its targets, if
  /// they are contiguous and the range is requested from no other server.
  /// @returns empty if the data must be received elsewhere
  std::span<std::byte> target_of(const planned_message& message) const;

  /// Processes a reply: copies the bytes still wanted to their targets.
  /// @param data Wherever they were received.
  /// @returns malformed_message, without effect, if it does not answer the message
  result<void> deliver(const planned_message& message, std::span<const std::byte> header,
                       std::span<const std::byte> data);

  /// The message will not be answered.
  void fail(const planned_message& message, const error& why);

  /// The server will neither be asked again nor answer.
  void fail_server(size_t server, const error& why);

  /// The server is late: requests each range pending there from its next place, if it has one.
  /// @returns whether there was such a range
  bool hedge(size_t server);

  /// Fails all open ranges with this error.
  /// @returns the result of each range
  std::vector<result<range_answer>> finish(const error& why);

private:
  struct progress {
    size_t length = 0;
    /// One bit per place.
    uint64_t begun = 0;
    uint64_t failed = 0;
    /// The place requested last.
    size_t last = 0;
    /// The place whose bytes are in the targets, and how many.
    size_t source = 0;
    size_t arrived = 0;
    bool is_over = false;
    bool in_demand = false;
    bool is_gone = false;
    range_head head = {};
    /// Checksum of the bytes that arrived in order.
    std::optional<running_checksum> sum;
    size_t summed = 0;
    error failure;
  };

  /// A range still to be requested from a server; `piece.length` starts at 0.
  struct line_entry {
    range_piece rest;
    size_t left = 0;
  };

  /// Requests the range from its best unused place; ends it if all have failed.
  void begin_next(size_t range);

  void fail_place(size_t range, size_t place, const error& why);

  void end(progress& which);

  /// The piece's place holds another page. Reported to the reader, because the owner may not know.
  void end_gone(const range_piece& piece);

  /// Takes a piece's bytes if the range can still come from its place.
  void take(const range_piece& piece, const span_answer& answer, std::span<const std::byte> bytes);

  /// Checksum of a complete range.
  uint64_t checksum_of(size_t range);

  std::span<const remote_range> ranges_;
  std::vector<server_standing> standing_;
  bool exports_;
  std::vector<progress> progress_;
  std::vector<std::deque<line_entry>> lines_;
  size_t open_ = 0;
};

} // namespace hicache
