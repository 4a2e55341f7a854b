// What an S3 server may answer: documents, ranges, and the bytes of an object in pieces.

#include "backends/headed_object.hpp"
#include "backends/s3/s3_replies.hpp"
#include "base/check.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace {

using namespace hicache;

constexpr auto fingerprint = uint64_t{7};
constexpr auto parts_bytes = size_t{600};

/// The object arrives in pieces, which overlap if the server repeats itself.
void read_object(std::span<const std::byte> input, size_t step, part_lengths rule) {
  auto bytes = std::vector<std::byte>(parts_bytes);
  const auto page
    = page_read{page_key{}, {std::span{bytes}.first(100), std::span{bytes}.subspan(100)}};
  auto object = headed_object_reader{page, fingerprint, rule};
  for (auto at = size_t{0}; at < input.size(); at += step)
    if (!object.take(at, input.subspan(at, std::min(2 * step, input.size() - at))))
      break;
  const auto outcome = object.outcome(input.size());
  HICACHE_CHECK(!outcome || *outcome <= parts_bytes);
  HICACHE_CHECK(outcome || outcome.error().code != ec::none);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2)
    return 0;
  const auto input = std::as_bytes(std::span{data, size}).subspan(1);
  const auto text = std::string_view{reinterpret_cast<const char*>(input.data()), input.size()};
  static_cast<void>(parse_s3_fault(text));
  static_cast<void>(is_completed_upload(text));
  if (const auto id = parse_upload_id(text))
    HICACHE_CHECK(!id->empty());
  if (const auto listing = parse_s3_listing(text))
    for (const auto& object : listing->objects)
      static_cast<void>(parse_page_key(object.name));
  if (const auto range = parse_content_range(text))
    HICACHE_CHECK(range->first <= range->last && range->last < range->total);
  for (const auto rule : {part_lengths::exact, part_lengths::bounded})
    read_object(input, size_t{data[0]} + 1, rule);
  return 0;
}
