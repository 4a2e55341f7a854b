#pragma once

#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Replies of a Redis server, which are untrusted. Nothing here does I/O.
namespace hicache {

/// A reply of RESP2.
struct redis_reply {
  enum class kind : uint8_t { nil, string, status, error, integer, array };

  kind type = kind::nil;
  int64_t integer = 0;
  /// Of a string, status or error. Empty for a string that a sink took.
  std::string text;
  std::vector<redis_reply> elements;

  bool is_error() const noexcept { return type == kind::error; }

  bool is_integer(int64_t value) const noexcept {
    return type == kind::integer && integer == value;
  }
};

/// Bytes of incomplete replies that a reader keeps: Redis's own bound on a value, and some room.
inline constexpr size_t redis_reply_bytes_max = (size_t{512} << 20) + (size_t{1} << 20);

/// Elements of one reply, nested ones included. The slots of a cluster whose every slot lies alone
/// take 200,000 with two replicas each.
inline constexpr size_t redis_reply_elements_max = size_t{1} << 18;

/// Cuts a byte stream into replies, by hiredis. One thread.
class redis_reply_reader {
public:
  /// Takes the bytes of a string that is a whole reply. They are valid during the call.
  using string_sink = std::function<void(std::span<const std::byte>)>;

  redis_reply_reader();
  redis_reply_reader(redis_reply_reader&&) noexcept;
  redis_reply_reader& operator=(redis_reply_reader&&) noexcept;
  ~redis_reply_reader();

  /// Appends received bytes.
  /// @returns malformed_message if a reply is too long
  result<void> feed(std::span<const std::byte> bytes);

  /// The next reply; nothing if more bytes are needed.
  /// @param sink Takes the bytes in place of `redis_reply::text`; may be empty.
  /// @returns malformed_message; the reader is of no use any more
  result<std::optional<redis_reply>> next(const string_sink& sink);

private:
  struct state;

  std::unique_ptr<state> state_;
};

/// Where a cluster's node sends a client.
struct redis_redirect {
  /// ASK: for this command only. Else MOVED: for good.
  bool is_ask = false;
  uint16_t slot = 0;
  rpc::endpoint where;
};

/// Parses the text of an error reply: "MOVED 3999 10.0.0.1:6381".
/// @param asked The node that replied, which an empty host stands for.
/// @returns nothing if it is no redirection
/// @relates redis_redirect
std::optional<redis_redirect> parse_redirect(std::string_view text, const rpc::endpoint& asked);

/// Slots that one node serves.
struct redis_slot_range {
  uint16_t first = 0;
  /// The last one, inclusive.
  uint16_t last = 0;
  rpc::endpoint master;
};

/// Parses the reply to CLUSTER SLOTS.
/// @param asked The node that replied, which an absent host stands for.
/// @returns malformed_message
/// @relates redis_slot_range
result<std::vector<redis_slot_range>> parse_slots(const redis_reply& reply,
                                                  const rpc::endpoint& asked);

/// Whether the same command may succeed a moment later: a slot that is being moved.
bool is_passing(const redis_reply& reply) noexcept;

/// The error of an object whose command got this reply: store_full if Redis is out of memory,
/// peer_unreachable if it starts or its cluster is down, else io_failure.
/// @pre reply.is_error()
error error_of(const redis_reply& reply, const std::string& server);

} // namespace hicache
