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

/// What page_client and page_server say to each other, over a socket (page_link) or as active
/// messages of UCX (ucx_lane). Internal to transport/. Fields travel in the machine's byte order.
namespace hicache {

static_assert(std::endian::native == std::endian::little,
              "hosts exchange these structs as they are in memory");

/// What a message is.
enum class page_message : uint32_t {
  /// First, by the socket, from each side: a page_greeting. The data are the sender's address in
  /// UCX, or nothing if it does without.
  greeting = 1,
  request = 2,
  reply = 3,
};

/// Changes when these structs do, so that different versions refuse each other.
inline constexpr uint32_t page_protocol = 0x48435035;

/// In front of each message on a socket; its header and its data follow.
struct page_frame_head {
  page_message kind{};
  uint32_t header_bytes = 0;
  uint64_t data_bytes = 0;
};

/// Header of a greeting.
struct page_greeting {
  uint32_t protocol = page_protocol;
  uint32_t unused = 0;
  /// From a server: shows that a request is from the reader that it greeted. 0 from a reader.
  uint64_t secret = 0;
};

/// Header of a request; `count` page_spans follow as its data.
struct page_request_head {
  uint32_t protocol = page_protocol;
  uint32_t count = 0;
  uint64_t id = 0;
  /// As the server's greeting said.
  uint64_t secret = 0;
};

/// A piece of the owner's memory, of a page or of a part of a large one, and where that page's
/// header is, and what the reader expects there.
struct page_span {
  /// The reader wants it even if others had it a moment ago.
  static constexpr uint32_t insists = 1;
  /// The reader will offer it, if it is in demand.
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

/// What a server did with a span.
enum class span_state : uint32_t {
  sent,
  /// Sent, as it was to others a moment ago.
  in_demand,
  /// Not sent: others that had it a moment ago will offer it as well.
  refused,
  /// Not sent: the memory holds another page there.
  gone,
};

/// Whether the bytes of a span follow its answer.
constexpr bool has_bytes(span_state state) noexcept {
  return state == span_state::sent || state == span_state::in_demand;
}

/// What a server says of a span.
struct span_answer {
  span_state state = span_state::sent;
  uint32_t unused = 0;
  /// The bytes at page_span::head, from before those of the span were read; zeros if they were not.
  range_head head = {};
};

/// Header of a reply. Nothing follows if status is not 0. If the request had one span, its
/// span_answer follows in the header, and the data are its bytes, straight from the memory. If it
/// had more, the data are a span_answer for each, then the bytes of those that are sent, without
/// gaps.
struct page_reply_head {
  uint32_t protocol = page_protocol;
  /// An `ec`.
  uint32_t status = 0;
  uint64_t id = 0;
};

/// A request as a server understands it.
struct page_question {
  uint64_t id = 0;
  uint64_t secret = 0;
  /// 1 to limits::transfer_ranges, of limits::transfer_bytes together. Nothing is known of whether
  /// the memory has them.
  std::vector<page_span> spans;
};

/// A reply's header as a client understands it.
struct page_answer {
  uint64_t id = 0;
  /// Why no bytes follow; `none` if they do.
  error refusal;
};

/// What a client learns about the spans of its request.
struct span_answers {
  std::vector<span_answer> list;
  /// Of the spans that were sent, one after the other. Not owned.
  std::span<const std::byte> bytes;
};

/// Takes a greeting apart.
/// @returns malformed_message with a sentence about the peer that sent it ("it ...")
result<page_greeting> decode_page_greeting(std::span<const std::byte> header);

/// Takes a request apart; the bytes come from another process and need not be aligned.
/// @returns malformed_message with a sentence about the reader that sent it ("it ...").
result<page_question> decode_page_request(std::span<const std::byte> header,
                                          std::span<const std::byte> data);

/// Takes the header of a reply apart. One of another version is a refusal of the request it names.
/// @returns malformed_message if it is none.
result<page_answer> decode_page_reply(std::span<const std::byte> header);

/// Takes the rest of a reply apart.
/// @param header All of it.
/// @returns malformed_message if it is no answer to these spans.
result<span_answers> decode_span_answers(std::span<const page_span> spans,
                                         std::span<const std::byte> header,
                                         std::span<const std::byte> data);

/// The longest data of a request.
inline constexpr size_t request_bytes = limits::transfer_ranges * sizeof(page_span);

/// The longest address in UCX that a greeting carries: some hundred bytes for each device.
inline constexpr size_t greeting_bytes = size_t{16} << 10;

/// The longest header and the longest data of a reply.
inline constexpr size_t reply_header_bytes = sizeof(page_reply_head) + sizeof(span_answer);
inline constexpr size_t reply_bytes
  = limits::transfer_bytes + limits::transfer_ranges * sizeof(span_answer);

/// Buffers of reply_bytes, kept for reuse: their pages are faulted in once. Not
/// thread-safe.
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
