#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// Messages from the sender of a handoff to its receiver, as lines of JSON.
namespace hicache {

/// Where one rank of a sender can be read.
struct handoff_endpoint {
  /// "host:port" of its page server.
  std::string address;
  /// Name under which processes of the same machine and user can map its memory.
  std::string memory;
  /// Random; differs between processes at one address.
  uint64_t nonce = 0;

  friend bool operator==(const handoff_endpoint&, const handoff_endpoint&) = default;
};

/// First: where the pages will be.
struct handoff_offer {
  uint64_t handoff = 0;
  uint32_t generation = 0;
  /// The handoff's part of the memory of each rank, in bytes from its start.
  uint64_t offset = 0;
  uint64_t first_page = 0;
  uint64_t tokens = 0;
  uint32_t receiver_ranks = 0;
  /// Identifies model, element type and page size.
  uint64_t fingerprint = 0;
  std::vector<handoff_endpoint> senders;

  friend bool operator==(const handoff_offer&, const handoff_offer&) = default;
};

/// The first `pages` pages of a layer can be read.
struct handoff_progress {
  uint32_t layer = 0;
  uint64_t pages = 0;

  friend bool operator==(const handoff_progress&, const handoff_progress&) = default;
};

/// Last: all layers were announced.
struct handoff_last {
  token_id token = 0;

  friend bool operator==(const handoff_last&, const handoff_last&) = default;
};

/// What a sender says; `error` is its failure.
using handoff_message = std::variant<handoff_offer, handoff_progress, handoff_last, error>;

/// @relates handoff_message
std::string to_line(const handoff_message& message);

/// Whether a line is a handoff_last as to_line() writes it; says so without parsing it.
/// @relates handoff_message
bool is_last(std::string_view line) noexcept;

/// Parses a line of another process.
/// @returns malformed_message with a sentence
/// @relates handoff_message
result<handoff_message> parse_handoff_message(std::string_view line);

} // namespace hicache
