#include "backends/serde/object_codec.hpp"

#include "backends/object_parts.hpp"
#include "backends/serde/byte_planes.hpp"
#include "base/check.hpp"
#include "base/immovable.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/page_hash.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace hicache::serde {

namespace {

constexpr auto allowed_chains
  = "expected \"none\", or \"fp8\", \"zstd\" or \"lz4\", and \"aes-256-gcm\", in this order and "
    "joined by '+'";

tl::unexpected<error> corrupt(std::string what) {
  return fail(ec::corrupt_page, std::move(what));
}

/// The parts as one piece, copied only if they are several.
std::span<const std::byte> joined(std::span<const std::span<const std::byte>> parts,
                                  std::vector<std::byte>& memory) {
  if (parts.size() == 1)
    return parts.front();
  memory.resize(length_of(parts));
  auto* end = memory.data();
  for (const auto& part : parts)
    end = std::ranges::copy(part, end).out;
  return memory;
}

// -- compressed payloads --------------------------------------------------------
//
// Four bytes for each plane, little endian: the length of what is stored for it. Then the planes. A
// plane of its original length is stored as it is.

constexpr size_t plane_length_bytes = 4;

void put_length(std::byte* target, size_t length) {
  for (auto i = size_t{0}; i < plane_length_bytes; ++i)
    target[i] = static_cast<std::byte>(length >> (8 * i));
}

size_t take_length(const std::byte* source) {
  auto length = size_t{0};
  for (auto i = size_t{0}; i < plane_length_bytes; ++i)
    length |= std::to_integer<size_t>(source[i]) << (8 * i);
  return length;
}

/// Compresses the planes of a stage.
/// @returns the length of the payload; nothing if it is not shorter than the stage
std::optional<size_t> compress_planes(std::span<const std::byte> stage, size_t planes,
                                      compressor& library, std::vector<std::byte>& memory,
                                      std::span<std::byte> target) {
  const auto plane_bytes = stage.size() / planes;
  memory.resize(planes == 1 ? 0 : plane_bytes);
  auto end = planes * plane_length_bytes;
  for (auto plane = size_t{0}; plane < planes; ++plane) {
    auto source = stage;
    if (planes > 1) {
      take_plane(stage, planes, plane, memory);
      source = memory;
    }
    if (end >= stage.size())
      return std::nullopt;
    const auto room = target.subspan(end, stage.size() - end);
    const auto limit = plane_bytes == 0 ? 0 : plane_bytes - 1;
    auto length = library.compress(source, room.first(std::min(room.size(), limit)));
    if (!length) {
      if (room.size() < plane_bytes)
        return std::nullopt;
      std::ranges::copy(source, room.begin());
      length = plane_bytes;
    }
    put_length(target.data() + plane * plane_length_bytes, *length);
    end += *length;
  }
  return end < stage.size() ? std::optional{end} : std::nullopt;
}

/// The inverse, for untrusted payloads.
/// @returns whether the payload is valid and fills the stage
bool decompress_planes(std::span<const std::byte> payload, size_t planes, compressor& library,
                       std::vector<std::byte>& memory, std::span<std::byte> stage) {
  if (stage.size() % planes != 0 || payload.size() < planes * plane_length_bytes)
    return false;
  const auto plane_bytes = stage.size() / planes;
  memory.resize(planes == 1 ? 0 : plane_bytes);
  auto rest = payload.subspan(planes * plane_length_bytes);
  for (auto plane = size_t{0}; plane < planes; ++plane) {
    const auto length = take_length(payload.data() + plane * plane_length_bytes);
    if (length > rest.size() || length > plane_bytes)
      return false;
    const auto source = rest.first(length);
    rest = rest.subspan(length);
    const auto target = planes == 1 ? stage : std::span{memory};
    if (length == plane_bytes)
      std::ranges::copy(source, target.begin());
    else if (!library.decompress(source, target))
      return false;
    if (planes > 1)
      put_plane(target, planes, plane, stage);
  }
  return rest.empty();
}

// -- sealing --------------------------------------------------------------------

/// What is authenticated besides the payload: the header before the seal, the page key and the
/// namespace.
struct associated_data : immovable {
  associated_data(const page_key& key, uint64_t fingerprint, std::span<const std::byte> object) {
    for (auto i = size_t{0}; i < namespace_bytes.size(); ++i)
      namespace_bytes[i] = static_cast<std::byte>(fingerprint >> (8 * i));
    parts
      = {object.first(sealed_header_bytes), std::as_bytes(std::span{key.bytes}), namespace_bytes};
  }

  std::array<std::byte, 8> namespace_bytes;
  std::array<std::span<const std::byte>, 3> parts;
};

/// The seal of an object that is not encrypted.
object_seal checksum_of(const associated_data& associated, std::span<const std::byte> payload) {
  const auto all
    = std::array{associated.parts[0], associated.parts[1], associated.parts[2], payload};
  const auto checksum = page_checksum(all);
  auto seal = object_seal{};
  for (auto i = size_t{0}; i < sizeof checksum; ++i)
    seal[i] = static_cast<std::byte>(checksum >> (8 * i));
  return seal;
}

gcm_nonce first_half(const object_nonce& nonce) {
  return std::span{nonce}.first<12>();
}

gcm_nonce second_half(const object_nonce& nonce) {
  return std::span{nonce}.last<12>();
}

} // namespace

// -- chains ---------------------------------------------------------------------

result<codec_chain> parse_codec_chain(std::string_view text) {
  auto chain = codec_chain{};
  if (text == "none")
    return chain;
  // Each codec has a place in the order, which may only grow.
  auto last = 0;
  for (auto rest = text; last >= 0;) {
    const auto end = std::min(rest.find('+'), rest.size());
    const auto name = rest.substr(0, end);
    auto place = -1;
    if (name == "fp8") {
      place = 1;
      chain.quantisation = quantisation::fp8_e4m3;
    } else if (name == "zstd" || name == "lz4") {
      place = 2;
      chain.compression = name == "zstd" ? compression::zstd : compression::lz4;
    } else if (name == "aes-256-gcm") {
      place = 3;
      chain.encryption = encryption::aes_256_gcm;
    }
    last = place > last ? place : -1;
    if (last >= 0 && end == rest.size())
      return chain;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return fail(ec::invalid_argument,
              "'" + std::string{text} + "' is not a list of codecs; " + allowed_chains);
}

std::string to_string(const codec_chain& chain) {
  auto text = std::string{};
  const auto add = [&](const char* name) { text += (text.empty() ? "" : "+") + std::string{name}; };
  if (chain.quantisation == quantisation::fp8_e4m3)
    add("fp8");
  if (chain.compression != compression::none)
    add(chain.compression == compression::zstd ? "zstd" : "lz4");
  if (chain.encryption == encryption::aes_256_gcm)
    add("aes-256-gcm");
  return text.empty() ? "none" : text;
}

codec_scratch::codec_scratch(const object_codec_options& options)
  : zstd_(make_zstd(options.zstd_level)), lz4_(make_lz4()) {
  if (options.objects)
    values_ = std::make_unique<dequantiser>(options.objects->element);
}

// -- object_codec ---------------------------------------------------------------

result<std::unique_ptr<object_codec>> object_codec::make(const object_codec_options& options,
                                                         key_ring keys) {
  if (options.zstd_level < 1 || options.zstd_level > 19)
    return fail(ec::invalid_argument, "zstd has no level " + std::to_string(options.zstd_level)
                                        + " here; expected 1 to 19");
  auto fp8 = std::optional<fp8_object>{};
  if (options.chain.quantisation != quantisation::none) {
    if (!options.objects)
      return fail(ec::invalid_argument, "fp8 needs to know what the objects are: heads, layers, "
                                        "layout and type of the elements");
    fp8 = HICACHE_TRY(fp8_object::make(*options.objects));
  }
  if (options.chain.encryption != encryption::none && keys.size() == 0)
    return fail(ec::invalid_argument, "aes-256-gcm needs keys, from a file or a command");
  return std::unique_ptr<object_codec>{new object_codec{options, std::move(fp8), std::move(keys)}};
}

object_codec::object_codec(const object_codec_options& options, std::optional<fp8_object> fp8,
                           key_ring keys)
  : options_(options), fp8_(std::move(fp8)), keys_(std::move(keys)),
    name_mask_(
      object_mask("encoded objects, format 1",
                  std::string{fp8_ ? "fp8 e4m3" : "lossless"}
                    + (options_.chain.encryption == encryption::none ? ", open" : ", encrypted"))) {
}

page_key object_codec::object_name(const page_key& key) const noexcept {
  return key == page_key{} ? key : object_key(key, name_mask_);
}

uint64_t object_codec::encoded_bytes(uint64_t original_bytes) const noexcept {
  HICACHE_CHECK(options_.chain.compression == compression::none);
  return object_header_bytes + (is_quantised(original_bytes) ? fp8_->fp8_bytes() : original_bytes);
}

result<uint64_t> object_codec::encode(const page_key& key, uint64_t tenant,
                                      std::span<const std::span<const std::byte>> parts,
                                      std::span<std::byte> target, codec_scratch& scratch) const {
  auto header = object_header{};
  header.original_bytes = length_of(parts);
  HICACHE_CHECK(target.size() >= encoded_bytes_max(header.original_bytes));
  if (header.original_bytes > object_bytes_max)
    return fail(ec::invalid_argument, "an object of " + format_bytes(header.original_bytes)
                                        + " is longer than codecs take ("
                                        + format_bytes(object_bytes_max) + ")");
  auto stage = joined(parts, scratch.whole_);
  if (is_quantised(stage.size())) {
    header.quantisation = quantisation::fp8_e4m3;
    scratch.stage_.resize(fp8_->fp8_bytes());
    fp8_->quantise(stage, scratch.stage_);
    stage = scratch.stage_;
  }
  const auto room = target.subspan(object_header_bytes);
  auto payload_bytes = std::optional<size_t>{};
  if (options_.chain.compression != compression::none) {
    const auto width = options_.objects ? options_.objects->shape.element_bytes : 1;
    const auto splits = header.quantisation == quantisation::none && (width == 2 || width == 4)
                        && stage.size() % width == 0;
    const auto planes = splits ? width : 1;
    payload_bytes = compress_planes(
      stage, planes, scratch.compressor_for(options_.chain.compression), scratch.plane_, room);
    if (payload_bytes) {
      header.compression = options_.chain.compression;
      header.planes = static_cast<uint8_t>(planes);
    }
  }
  if (!payload_bytes) {
    std::ranges::copy(stage, room.begin());
    payload_bytes = stage.size();
  }
  header.payload_bytes = *payload_bytes;
  const auto encoded_length = object_header_bytes + *payload_bytes;
  HICACHE_TRY(seal(header, key, tenant, target.first(encoded_length)));
  return encoded_length;
}

result<void> object_codec::seal(object_header& header, const page_key& key, uint64_t tenant,
                                std::span<std::byte> encoded) const {
  const auto head = encoded.first<object_header_bytes>();
  const auto payload = encoded.subspan(object_header_bytes);
  if (options_.chain.encryption == encryption::none) {
    encode_object_header(header, head);
    const auto associated = associated_data{key, options_.fingerprint, encoded};
    std::ranges::copy(checksum_of(associated, payload), head.begin() + sealed_header_bytes);
    return {};
  }
  const auto* newest = keys_.newest(tenant);
  if (newest == nullptr)
    return fail(ec::invalid_argument,
                "there is no key for tenant " + std::to_string(tenant) + ", and none for '*'");
  const auto nonce = HICACHE_TRY(nonces_.next());
  header.encryption = encryption::aes_256_gcm;
  header.key_id = newest->id;
  header.nonce = nonce;
  const auto once = HICACHE_TRY(cipher_.derive(newest->key, first_half(header.nonce)));
  encode_object_header(header, head);
  const auto associated = associated_data{key, options_.fingerprint, encoded};
  const auto tag
    = HICACHE_TRY(cipher_.seal(once, second_half(header.nonce), associated.parts, payload));
  std::ranges::copy(tag, head.begin() + sealed_header_bytes);
  return {};
}

result<void> object_codec::open(const object_header& header, const page_key& key,
                                std::span<std::byte> object) const {
  const auto associated = associated_data{key, options_.fingerprint, object};
  const auto payload = object.subspan(object_header_bytes);
  if (header.encryption != options_.chain.encryption)
    return corrupt(header.encryption == encryption::none
                     ? "an object is not encrypted; expected aes-256-gcm"
                     : "an object is encrypted; expected an open one");
  if (header.encryption == encryption::none) {
    if (checksum_of(associated, payload) != header.seal)
      return corrupt("an encoded object does not have the checksum that its header says, or "
                     "belongs to another key or namespace");
    return {};
  }
  const auto* known = keys_.find(header.key_id);
  if (known == nullptr)
    return corrupt("an object is encrypted with the key '" + header.key_id
                   + "', which is not among the keys");
  const auto once = HICACHE_TRY(cipher_.derive(*known, first_half(header.nonce)));
  if (!cipher_.open(once, second_half(header.nonce), associated.parts, header.seal, payload))
    return corrupt("an object does not decrypt with the key '" + header.key_id
                   + "': it is damaged, belongs to another page or namespace, or the key differs");
  return {};
}

result<void> object_codec::check(const object_header& header, uint64_t wanted_bytes) const {
  HICACHE_TRY(check_room(header.original_bytes, wanted_bytes, part_lengths::exact));
  const auto is_fp8 = header.quantisation != quantisation::none;
  if (is_fp8 != is_quantised(wanted_bytes))
    return corrupt(is_fp8 ? "an object is in fp8; expected its own elements"
                          : "an object is not in fp8, which was expected");
  return {};
}

result<void> object_codec::decode(const page_key& key, std::span<std::byte> object,
                                  std::span<const std::span<std::byte>> parts,
                                  codec_scratch& scratch) const {
  const auto header = HICACHE_TRY(decode_object_header(object));
  HICACHE_TRY(open(header, key, object));
  const auto wanted = length_of(parts);
  HICACHE_TRY(check(header, wanted));
  const auto is_fp8 = header.quantisation != quantisation::none;
  const auto stage_bytes = is_fp8 ? fp8_->fp8_bytes() : wanted;
  // A single part is decoded in place.
  scratch.whole_.resize(parts.size() == 1 ? 0 : wanted);
  const auto whole = parts.size() == 1 ? parts.front() : std::span{scratch.whole_};
  auto stage = std::span<const std::byte>{object}.subspan(object_header_bytes);
  if (header.compression != compression::none) {
    scratch.stage_.resize(is_fp8 ? stage_bytes : 0);
    const auto target = is_fp8 ? std::span{scratch.stage_} : whole;
    if (!decompress_planes(stage, header.planes, scratch.compressor_for(header.compression),
                           scratch.plane_, target))
      return corrupt("the compressed bytes of an object are damaged");
    stage = target;
  } else if (stage.size() != stage_bytes) {
    return corrupt("an encoded object has " + std::to_string(stage.size())
                   + " bytes behind its header; expected " + std::to_string(stage_bytes));
  }
  if (is_fp8) {
    HICACHE_TRY(fp8_->dequantise(stage, whole, *scratch.values_));
  } else if (stage.data() != whole.data()) {
    std::ranges::copy(stage, whole.begin());
  }
  if (parts.size() != 1)
    scatter(whole.data(), parts);
  return {};
}

result<std::vector<std::byte>> object_codec::decode_whole(const page_key& key,
                                                          std::span<const std::byte> object,
                                                          uint64_t bytes_max,
                                                          codec_scratch& scratch) const {
  const auto header = HICACHE_TRY(decode_object_header(object));
  if (header.original_bytes > bytes_max)
    return corrupt("an encoded object has " + format_bytes(header.original_bytes)
                   + "; expected at most " + format_bytes(bytes_max));
  auto encoded = std::vector<std::byte>{object.begin(), object.end()};
  auto whole = std::vector<std::byte>(header.original_bytes);
  const auto part = std::span{whole};
  HICACHE_TRY(decode(key, encoded, {&part, 1}, scratch));
  return whole;
}

} // namespace hicache::serde
