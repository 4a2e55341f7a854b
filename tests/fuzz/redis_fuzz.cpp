// What a Redis server may answer: replies in pieces of any size, redirections, slots, and the
// values of an object.

#include "backends/redis/object_reader.hpp"
#include "backends/redis/redis_reply.hpp"
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
constexpr auto parts_bytes = size_t{6000};

const auto asked = rpc::endpoint{"localhost", 6379};

void use(const redis_reply& reply) {
  static_cast<void>(is_passing(reply));
  if (reply.is_error())
    HICACHE_CHECK(error_of(reply, "s").code != ec::none);
  if (const auto redirect = parse_redirect(reply.text, asked))
    HICACHE_CHECK(redirect->slot < redis_slots && redirect->where.port != 0);
  if (const auto ranges = parse_slots(reply, asked))
    for (const auto& range : *ranges)
      HICACHE_CHECK(range.first <= range.last && range.last < redis_slots);
}

/// A connection on which all values of an object are asked for.
void read_object(std::span<const std::byte> input, size_t step, part_lengths rule) {
  auto bytes = std::vector<std::byte>(parts_bytes);
  const auto page
    = page_read{page_key{}, {std::span{bytes}.first(100), std::span{bytes}.subspan(100)}};
  auto object = object_reader{page, fingerprint, redis_chunk_min, rule};
  auto chunk = uint32_t{0};
  auto reader = redis_reply_reader{};
  for (auto at = size_t{0}; at < input.size(); at += step) {
    if (!reader.feed(input.subspan(at, std::min(step, input.size() - at))))
      break;
    while (true) {
      const auto reply
        = reader.next([&](std::span<const std::byte> value) { object.take(chunk++, value); });
      if (!reply)
        return;
      if (!*reply)
        break;
      use(**reply);
    }
  }
  const auto outcome = object.outcome();
  HICACHE_CHECK(!outcome || *outcome <= parts_bytes);
  HICACHE_CHECK(outcome || outcome.error().code != ec::none);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2)
    return 0;
  const auto input = std::as_bytes(std::span{data, size}).subspan(1);
  const auto step = size_t{data[0]} % 64 + 1;
  for (const auto rule : {part_lengths::exact, part_lengths::bounded})
    read_object(input, step, rule);
  static_cast<void>(
    parse_redirect({reinterpret_cast<const char*>(input.data()), input.size()}, asked));
  return 0;
}
