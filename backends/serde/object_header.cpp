#include "backends/serde/object_header.hpp"

#include "base/check.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <string_view>

namespace hicache::serde {

namespace {

constexpr auto magic = std::array{std::byte{'h'}, std::byte{'c'}, std::byte{'s'}, std::byte{'d'}};
constexpr auto format_version = uint8_t{1};

// Where the fields lie; bytes 9 to 15 are zero.
constexpr size_t version_at = 4;
constexpr size_t quantisation_at = 5;
constexpr size_t compression_at = 6;
constexpr size_t encryption_at = 7;
constexpr size_t planes_at = 8;
constexpr size_t original_at = 16;
constexpr size_t payload_at = 24;
constexpr size_t key_id_at = 32;
constexpr size_t nonce_at = 48;
static_assert(key_id_at + key_id_bytes == nonce_at);
static_assert(nonce_at + nonce_bytes == sealed_header_bytes);

void put_number(std::span<std::byte> target, uint64_t number) {
  for (auto& byte : target.first(8)) {
    byte = static_cast<std::byte>(number);
    number >>= 8;
  }
}

uint64_t take_number(std::span<const std::byte> source) {
  auto number = uint64_t{0};
  for (auto i = size_t{8}; i-- > 0;)
    number = number << 8 | std::to_integer<uint64_t>(source[i]);
  return number;
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](auto byte) { return byte == std::byte{0}; });
}

tl::unexpected<error> corrupt(const std::string& what) {
  return fail(ec::corrupt_page, "an encoded object " + what);
}

/// The name in a field padded with zeros; nothing if it is not a key's name.
std::string key_id_of(std::span<const std::byte> field) {
  auto id = std::string{};
  for (const auto byte : field)
    if (byte != std::byte{0})
      id.push_back(static_cast<char>(byte));
  return is_key_id(id) && is_zero(field.subspan(id.size())) ? id : std::string{};
}

result<void> check_codecs(std::span<const std::byte> bytes) {
  const auto at = [&](size_t offset) { return std::to_integer<uint8_t>(bytes[offset]); };
  const auto unknown = [](const char* what, uint8_t number) {
    return corrupt("has the unknown " + std::string{what} + " " + std::to_string(number));
  };
  if (at(version_at) != format_version)
    return unknown("format version", at(version_at));
  if (at(quantisation_at) > static_cast<uint8_t>(quantisation::fp8_e4m3))
    return unknown("quantisation", at(quantisation_at));
  if (at(compression_at) > static_cast<uint8_t>(compression::lz4))
    return unknown("compression", at(compression_at));
  if (at(encryption_at) > static_cast<uint8_t>(encryption::aes_256_gcm))
    return unknown("encryption", at(encryption_at));
  const auto planes = at(planes_at);
  if (planes != 1 && planes != 2 && planes != 4)
    return corrupt("is split into " + std::to_string(planes) + " planes; expected 1, 2 or 4");
  if (!is_zero(bytes.subspan(planes_at + 1, original_at - planes_at - 1)))
    return corrupt("has reserved bytes that are not zero");
  return {};
}

} // namespace

bool is_key_id(std::string_view text) noexcept {
  return !text.empty() && text.size() <= key_id_bytes && std::ranges::all_of(text, [](char x) {
    return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '.'
           || x == '_' || x == '-';
  });
}

void encode_object_header(const object_header& header,
                          std::span<std::byte, object_header_bytes> target) {
  HICACHE_CHECK((header.encryption == encryption::none) == header.key_id.empty());
  HICACHE_CHECK(header.key_id.empty() || is_key_id(header.key_id));
  std::ranges::fill(target, std::byte{0});
  std::ranges::copy(magic, target.begin());
  target[version_at] = std::byte{format_version};
  target[quantisation_at] = static_cast<std::byte>(header.quantisation);
  target[compression_at] = static_cast<std::byte>(header.compression);
  target[encryption_at] = static_cast<std::byte>(header.encryption);
  target[planes_at] = std::byte{header.planes};
  put_number(target.subspan(original_at), header.original_bytes);
  put_number(target.subspan(payload_at), header.payload_bytes);
  std::ranges::copy(std::as_bytes(std::span{header.key_id}), target.begin() + key_id_at);
  std::ranges::copy(header.nonce, target.begin() + nonce_at);
  std::ranges::copy(header.seal, target.begin() + sealed_header_bytes);
}

result<object_header> decode_object_header(std::span<const std::byte> object) {
  if (object.size() < object_header_bytes)
    return corrupt("has " + std::to_string(object.size()) + " bytes, less than its header");
  const auto bytes = object.first<object_header_bytes>();
  if (!std::ranges::equal(bytes.first(magic.size()), magic))
    return corrupt("does not begin with the header's magic");
  HICACHE_TRY(check_codecs(bytes));
  auto header = object_header{};
  header.quantisation = static_cast<quantisation>(bytes[quantisation_at]);
  header.compression = static_cast<compression>(bytes[compression_at]);
  header.encryption = static_cast<encryption>(bytes[encryption_at]);
  header.planes = std::to_integer<uint8_t>(bytes[planes_at]);
  header.original_bytes = take_number(bytes.subspan(original_at));
  header.payload_bytes = take_number(bytes.subspan(payload_at));
  if (header.payload_bytes != object.size() - object_header_bytes)
    return corrupt("has " + std::to_string(object.size() - object_header_bytes)
                   + " bytes behind its header, which says "
                   + std::to_string(header.payload_bytes));
  const auto key_field = bytes.subspan(key_id_at, key_id_bytes);
  std::ranges::copy(bytes.subspan(nonce_at, nonce_bytes), header.nonce.begin());
  std::ranges::copy(bytes.subspan(sealed_header_bytes), header.seal.begin());
  if (header.encryption == encryption::none) {
    if (!is_zero(bytes.subspan(key_id_at, key_id_bytes + nonce_bytes)))
      return corrupt("names a key although it is not encrypted");
    return header;
  }
  header.key_id = key_id_of(key_field);
  if (header.key_id.empty())
    return corrupt("is encrypted but does not name a key");
  return header;
}

} // namespace hicache::serde
