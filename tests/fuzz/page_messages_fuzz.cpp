// What readers and owners of pages send each other. The first byte is the length of the header, its
// highest bit says that it is a reply; the data of one answers spans of one, two, three... bytes.

#include "base/check.hpp"
#include "transport/page_messages.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace hicache;

void check_request(std::span<const std::byte> header, std::span<const std::byte> data) {
  const auto question = decode_page_request(header, data);
  if (!question) {
    HICACHE_CHECK(question.error().code == ec::malformed_message);
    return;
  }
  auto length = uint64_t{0};
  for (const auto& span : question->spans) {
    HICACHE_CHECK(span.length <= limits::transfer_bytes);
    length += span.length;
  }
  HICACHE_CHECK(length <= limits::transfer_bytes);
  const auto head = page_request_head{page_protocol, static_cast<uint32_t>(question->spans.size()),
                                      question->id, question->secret};
  const auto again = decode_page_request(std::as_bytes(std::span{&head, 1}),
                                         std::as_bytes(std::span{question->spans}));
  HICACHE_CHECK(again && again->id == question->id && again->secret == question->secret
                && again->spans == question->spans);
}

void check_reply(std::span<const std::byte> header, std::span<const std::byte> data) {
  const auto answer = decode_page_reply(header);
  HICACHE_CHECK(
    answer.has_value()
    == (header.size() == sizeof(page_reply_head) || header.size() == reply_header_bytes));
  if (!answer)
    return;
  HICACHE_CHECK(static_cast<uint8_t>(answer->refusal.code) < ec_count);
  auto spans = std::vector<page_span>(1 + data.size() / 200);
  for (auto i = size_t{0}; i < spans.size(); ++i)
    spans[i].length = static_cast<uint32_t>(i + 1);
  const auto answers = decode_span_answers(spans, header, data);
  if (!answers)
    return;
  HICACHE_CHECK(answers->list.size() == spans.size());
  auto length = size_t{0};
  for (auto i = size_t{0}; i < spans.size(); ++i)
    length += has_bytes(answers->list[i].state) ? spans[i].length : 0;
  HICACHE_CHECK(length == answers->bytes.size());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const auto bytes = std::as_bytes(std::span{data, size}.subspan(1));
  const auto header = bytes.first(std::min<size_t>(data[0] & 0x7f, bytes.size()));
  if ((data[0] & 0x80) != 0)
    check_reply(header, bytes.subspan(header.size()));
  else
    check_request(header, bytes.subspan(header.size()));
  return 0;
}
