#include "messages/page_header.hpp"

#include "base/check.hpp"
#include "messages/page_header.capnp.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/array.h>
#include <kj/exception.h>

#include <array>
#include <cstring>

namespace hicache {

namespace {

/// "HKVP" read as a little-endian number.
constexpr uint32_t magic = 0x50564b48;

constexpr uint16_t version = 1;

constexpr size_t header_words = page_header_bytes / sizeof(capnp::word);

using key_words = std::array<uint64_t, 4>;

static_assert(sizeof(key_words) == sizeof(page_key::bytes));

} // namespace

void encode_page_header(const page_header& header, std::span<std::byte, page_header_bytes> target) {
  auto scratch = std::array<capnp::word, header_words>{};
  auto builder = capnp::MallocMessageBuilder{kj::arrayPtr(scratch.data(), scratch.size())};
  auto root = builder.initRoot<schema::PageHeader>();
  auto key = key_words{};
  std::memcpy(key.data(), header.key.bytes.data(), sizeof(key));
  root.setMagic(magic);
  root.setVersion(version);
  root.setGeneration(header.generation);
  root.setFingerprint(header.fingerprint);
  root.setKey0(key[0]);
  root.setKey1(key[1]);
  root.setKey2(key[2]);
  root.setKey3(key[3]);
  root.setLength(header.length);
  root.setChecksum(header.checksum);
  root.setKeptCheck(header.kept_check);
  root.setCopies(header.copies);
  root.setHeld(header.held);
  const auto words = capnp::messageToFlatArray(builder);
  HICACHE_CHECK(words.asBytes().size() == page_header_bytes);
  std::memcpy(target.data(), words.begin(), page_header_bytes);
}

bool may_be_page_header(std::span<const std::byte> source) noexcept {
  // After two words of framing.
  auto found = uint32_t{};
  std::memcpy(&found, source.data() + 2 * sizeof(capnp::word), sizeof(found));
  return found == magic;
}

result<page_header> decode_page_header(std::span<const std::byte> source) {
  if (source.size() < page_header_bytes)
    return fail(ec::corrupt_page, "shorter than a page header");
  // The copy is aligned, as Cap'n Proto requires, and stable if the source changes concurrently.
  auto words = std::array<capnp::word, header_words>{};
  std::memcpy(words.data(), source.data(), page_header_bytes);
  try {
    auto reader = capnp::FlatArrayMessageReader{kj::arrayPtr(words.data(), words.size())};
    const auto root = reader.getRoot<schema::PageHeader>();
    if (root.getMagic() != magic || root.getVersion() != version)
      return fail(ec::corrupt_page, "no page header of a known version");
    auto header = page_header{};
    const auto key = key_words{root.getKey0(), root.getKey1(), root.getKey2(), root.getKey3()};
    std::memcpy(header.key.bytes.data(), key.data(), sizeof(key));
    header.generation = root.getGeneration();
    header.fingerprint = root.getFingerprint();
    header.length = root.getLength();
    header.checksum = root.getChecksum();
    header.kept_check = root.getKeptCheck();
    header.copies = root.getCopies();
    header.held = root.getHeld();
    return header;
  } catch (const kj::Exception&) {
    return fail(ec::corrupt_page, "broken page header");
  }
}

} // namespace hicache
