#pragma once

#include "base/limits.hpp"
#include "hicache/error.hpp"
#include "transport/page_channel.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

/// Protocol between page_client and page_server, over a socket (page_link) or UCX active messages
/// (ucx_lane). Internal to transport/. Fields travel in the machine's byte order.
namespace hicache {

static_assert(std::endian::native == std::endian::little,
              "hosts exchange these structs as they are in memory");

enum class page_message : uint32_t {
  /// First message of each side, by socket: a page_greeting. The data are the UCX address, if any.
  greeting = 1,
  request = 2,
  reply = 3,
};

/// Changes with these structs, so that different versions refuse each other.
inline constexpr uint32_t page_protocol = 0x48435035;

/// Precedes each message on a socket; the header and the data follow.
struct page_frame_head {
  page_message kind{};
  uint32_t header_bytes = 0;
  uint64_t data_bytes = 0;
};

struct page_greeting {
  uint32_t protocol = page_protocol;
  uint32_t unused = 0;
  /// From a server: proves that a request comes from the reader it greeted. From a reader: 0.
  uint64_t secret = 0;
};

/// Header of a request; the data are `count` page_spans.
struct page_request_head {
  uint32_t protocol = page_protocol;
  uint32_t count = 0;
  uint64_t id = 0;
  /// Secret of the server's greeting.
  uint64_t secret = 0;
};

/// A piece of the owner's memory (a page or a part of a large one), the offset of the page's
/// header, and what the reader expects there.
struct page_span {
  /// The reader wants it even if others got it a moment ago.
  static constexpr uint32_t insists = 1;
  /// The reader will offer it if it is in demand.
  static constexpr uint32_t exports = 2;

  uint64_t head = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t flags = 0;
  page_key key = {};
  uint32_t generation = 0;
  uint32_t unused = 0;

  friend bool operator==(const page_span&, const page_span&) = default;
};

/// What the server did with a span.
enum class span_state : uint32_t {
  sent,
  /// Sent, and sent to others a moment ago.
  in_demand,
  /// Not sent: other readers got it a moment ago and will offer it.
  refused,
  /// Not sent: the memory holds another page there.
  gone,
};

/// Whether the bytes of a span follow its answer.
constexpr bool has_bytes(span_state state) noexcept {
  return state == span_state::sent || state == span_state::in_demand;
}

/// The server's answer for a span.
struct span_answer {
  span_state state = span_state::sent;
  uint32_t unused = 0;
  /// The bytes at page_span::head, copied before the bytes of the span; zeros if nothing was read.
  range_head head = {};
};

/// Header of a reply. Nothing follows unless status is 0. With one span in the request, its
/// span_answer follows in the header and the data are its bytes, straight from the memory. With
/// more, the data are a span_answer for each, then the bytes of the sent spans without gaps.
struct page_reply_head {
  uint32_t protocol = page_protocol;
  /// An `ec`.
  uint32_t status = 0;
  uint64_t id = 0;
};

struct page_question {
  uint64_t id = 0;
  uint64_t secret = 0;
  /// 1 to limits::transfer_ranges, of limits::transfer_bytes together; may be outside the memory.
  std::vector<page_span> spans;
};

struct page_answer {
  uint64_t id = 0;
  /// Why no bytes follow; `none` if they do.
  error refusal;
};

/// The decoded answers to the spans of a request.
struct span_answers {
  std::vector<span_answer> list;
  /// Bytes of the sent spans, one after the other. Not owned.
  std::span<const std::byte> bytes;
};

/// Decodes a greeting.
/// @returns malformed_message with a sentence about the sender ("it ...")
result<page_greeting> decode_page_greeting(std::span<const std::byte> header);

/// Decodes a request; the bytes come from another process and need not be aligned.
/// @returns malformed_message with a sentence about the sender ("it ...").
result<page_question> decode_page_request(std::span<const std::byte> header,
                                          std::span<const std::byte> data);

/// Decodes the header of a reply. A reply of another version is a refusal of the request it names.
/// @returns malformed_message if it is not a reply.
result<page_answer> decode_page_reply(std::span<const std::byte> header);

/// Decodes the rest of a reply.
/// @param header The whole header.
/// @returns malformed_message if it does not answer these spans.
result<span_answers> decode_span_answers(std::span<const page_span> spans,
                                         std::span<const std::byte> header,
                                         std::span<const std::byte> data);

/// Maximum data of a request.
inline constexpr size_t request_bytes = limits::transfer_ranges * sizeof(page_span);

/// Maximum UCX address in a greeting; a device takes some hundred bytes.
inline constexpr size_t greeting_bytes = size_t{16} << 10;

/// Maximum header and data of a reply.
inline constexpr size_t reply_header_bytes = sizeof(page_reply_head) + sizeof(span_answer);
inline constexpr size_t reply_bytes
  = limits::transfer_bytes + limits::transfer_ranges * sizeof(span_answer);

/// Reusable buffers of reply_bytes, so that their pages fault in once. Not thread-safe.
class staging_pool {
public:
  using buffer = std::unique_ptr<std::byte[]>;

  buffer take() {
    if (spare_.empty())
      return std::make_unique_for_overwrite<std::byte[]>(reply_bytes);
    auto taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }

  void give_back(buffer used) {
    if (used && spare_.size() < limits::transfers_in_flight)
      spare_.push_back(std::move(used));
  }

private:
  std::vector<buffer> spare_;
};

} // namespace hicache
