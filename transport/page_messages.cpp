#include "transport/page_messages.hpp"

#include <cstring>

namespace hicache {

result<page_greeting> decode_page_greeting(std::span<const std::byte> header) {
  auto greeting = page_greeting{};
  if (header.size() != sizeof(greeting))
    return fail(ec::malformed_message, "its greeting has another length");
  std::memcpy(&greeting, header.data(), sizeof(greeting));
  if (greeting.protocol != page_protocol)
    return fail(ec::malformed_message, "it speaks another version");
  return greeting;
}

result<page_question> decode_page_request(std::span<const std::byte> header,
                                          std::span<const std::byte> data) {
  auto head = page_request_head{};
  if (header.size() != sizeof(head))
    return fail(ec::malformed_message, "its header has another length");
  std::memcpy(&head, header.data(), sizeof(head));
  if (head.protocol != page_protocol)
    return fail(ec::malformed_message, "it speaks another version");
  if (head.count == 0 || head.count > limits::transfer_ranges
      || data.size() != head.count * sizeof(page_span))
    return fail(ec::malformed_message, "its request has another length than it says");
  auto question = page_question{head.id, head.secret, std::vector<page_span>(head.count)};
  std::memcpy(question.spans.data(), data.data(), data.size());
  auto room = uint64_t{limits::transfer_bytes};
  for (const auto& span : question.spans) {
    if (span.length > room)
      return fail(ec::malformed_message, "it asks for more bytes than a reply holds");
    room -= span.length;
  }
  return question;
}

result<page_answer> decode_page_reply(std::span<const std::byte> header) {
  auto head = page_reply_head{};
  if (header.size() != sizeof(head) && header.size() != reply_header_bytes)
    return fail(ec::malformed_message, "the header of a reply has another length");
  std::memcpy(&head, header.data(), sizeof(head));
  if (head.protocol != page_protocol || head.status >= ec_count)
    return page_answer{head.id, {ec::malformed_message, "the page server speaks another version"}};
  if (head.status != 0)
    return page_answer{head.id, {static_cast<ec>(head.status), "the page server refused a range"}};
  return page_answer{head.id, {}};
}

result<span_answers> decode_span_answers(std::span<const page_span> spans,
                                         std::span<const std::byte> header,
                                         std::span<const std::byte> data) {
  const auto size = spans.size() * sizeof(span_answer);
  const auto is_alone = spans.size() == 1;
  const auto from = is_alone ? header.subspan(sizeof(page_reply_head)) : data;
  if (from.size() < size)
    return fail(ec::malformed_message, "the page server's reply is too short");
  auto answers
    = span_answers{std::vector<span_answer>(spans.size()), data.subspan(is_alone ? 0 : size)};
  std::memcpy(answers.list.data(), from.data(), size);
  auto length = size_t{0};
  for (auto i = size_t{0}; i < spans.size(); ++i) {
    const auto state = answers.list[i].state;
    if (state > span_state::gone)
      return fail(ec::malformed_message, "the page server speaks another version");
    length += has_bytes(state) ? spans[i].length : 0;
  }
  if (length != answers.bytes.size())
    return fail(ec::malformed_message, "the page server sent another number of bytes");
  return answers;
}

} // namespace hicache
