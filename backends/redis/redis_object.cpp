#include "backends/redis/redis_object.hpp"

#include "backends/store_outcomes.hpp"
#include "base/check.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace hicache {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr auto crc_table = [] {
  auto table = std::array<uint16_t, 256>{};
  for (auto i = size_t{0}; i < table.size(); ++i) {
    auto crc = static_cast<uint16_t>(i << 8);
    for (auto bit = 0; bit < 8; ++bit)
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    table[i] = crc;
  }
  return table;
}();

} // namespace

void encode_redis_head(const redis_head& head, std::span<std::byte, redis_head_bytes> target) {
  encode_page_header(head.page, target.first<page_header_bytes>());
  std::memcpy(&target[page_header_bytes], &head.chunk_bytes, sizeof(uint32_t));
  std::memcpy(&target[page_header_bytes + sizeof(uint32_t)], &head.chunks, sizeof(uint32_t));
}

result<redis_head> decode_redis_head(std::span<const std::byte> value, const page_key& key,
                                     std::optional<uint64_t> fingerprint) {
  if (value.size() < redis_head_bytes)
    return fail(ec::corrupt_page, "shorter than an object's head");
  const auto page = HICACHE_TRY(decode_page_header(value));
  auto head = redis_head{page, 0, 0};
  std::memcpy(&head.chunk_bytes, &value[page_header_bytes], sizeof(uint32_t));
  std::memcpy(&head.chunks, &value[page_header_bytes + sizeof(uint32_t)], sizeof(uint32_t));
  if (page.key != key)
    return fail(ec::corrupt_page, "the object of another key");
  if (fingerprint && page.fingerprint != *fingerprint)
    return tl::unexpected{other_namespace()};
  if (head.chunk_bytes < redis_chunk_min || head.chunk_bytes > redis_chunk_max
      || page.length > uint64_t{UINT32_MAX} * redis_chunk_min
      || head.chunks != redis_chunks(page.length, head.chunk_bytes))
    return fail(ec::corrupt_page, "a head whose lengths contradict each other");
  return head;
}

uint64_t redis_chunk_length(const redis_head& head, uint32_t chunk) {
  HICACHE_CHECK(chunk < head.chunks);
  const auto first = uint64_t{chunk} * head.chunk_bytes;
  return std::min<uint64_t>(head.chunk_bytes, head.page.length - first);
}

std::string redis_name(std::string_view prefix, const page_key& key, uint32_t chunk) {
  auto name = std::string{prefix};
  name += '{' + to_string(key) + '}';
  if (chunk > 0)
    name += ':' + std::to_string(chunk);
  return name;
}

std::optional<page_key> parse_redis_name(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix))
    return std::nullopt;
  name.remove_prefix(prefix.size());
  if (!name.starts_with('{') || !name.ends_with('}'))
    return std::nullopt;
  return parse_page_key(name.substr(1, name.size() - 2));
}

uint16_t redis_slot(std::string_view tag) noexcept {
  auto crc = uint16_t{0};
  for (const auto c : tag)
    crc = static_cast<uint16_t>((crc << 8) ^ crc_table[(crc >> 8) ^ static_cast<uint8_t>(c)]);
  return crc % redis_slots;
}

} // namespace hicache
