#pragma once

// Shared by the sources that encode and decode messages. Include after wire_values.hpp.

#include "base/limits.hpp"
#include "hicache/error.hpp"
#include "messages/wire.hpp"
#include "messages/wire_values.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>
#include <kj/io.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace hicache::wire {

// -- parts of values ----------------------------------------------------------

inline void write(const page_key& x, schema::Key::Builder to) {
  uint64_t words[4];
  std::memcpy(words, x.bytes.data(), sizeof(words));
  to.setWord0(words[0]);
  to.setWord1(words[1]);
  to.setWord2(words[2]);
  to.setWord3(words[3]);
}

inline void read(schema::Key::Reader from, page_key& x) {
  const uint64_t words[] = {from.getWord0(), from.getWord1(), from.getWord2(), from.getWord3()};
  std::memcpy(x.bytes.data(), words, sizeof(words));
}

inline std::string text(capnp::Text::Reader from, size_t text_max = 256) {
  KJ_REQUIRE(from.size() <= text_max, "text too long");
  KJ_REQUIRE(std::memchr(from.cStr(), 0, from.size()) == nullptr, "text holds a zero");
  return {from.cStr(), from.size()};
}

inline unsigned size_of(const auto& xs) {
  return static_cast<unsigned>(xs.size());
}

/// Lists of structs, element by element; the sizes must be equal.
template <class T, class ListBuilder, class WriteOne>
void write_each(const std::vector<T>& xs, ListBuilder to, WriteOne write_one) {
  for (auto i = 0u; i < to.size(); ++i)
    write_one(xs[i], to[i]);
}

template <class T, class ListReader, class ReadOne>
void read_each(ListReader from, size_t count_max, std::vector<T>& xs, ReadOne read_one) {
  KJ_REQUIRE(from.size() <= count_max, "list too long");
  xs.resize(from.size());
  for (auto i = 0u; i < from.size(); ++i)
    read_one(from[i], xs[i]);
}

// -- frames -------------------------------------------------------------------

/// Messages up to this length are built without allocation, e.g. 128 keys and their places.
inline constexpr auto first_words = size_t{1024};

template <class Schema, class T>
frame encode_as(const T& x) {
  capnp::word first[first_words] = {};
  auto builder = capnp::MallocMessageBuilder{kj::arrayPtr(first, first_words)};
  write(x, builder.initRoot<Schema>());
  auto encoded = frame(capnp::computeSerializedSizeInWords(builder));
  auto bytes = kj::arrayPtr(reinterpret_cast<kj::byte*>(encoded.data()),
                            encoded.size() * sizeof(capnp::word));
  auto stream = kj::ArrayOutputStream{bytes};
  capnp::writeMessage(stream, builder);
  return encoded;
}

/// Decodes within fixed bounds. Exception boundary: turns Cap'n Proto's exceptions into errors.
template <class Schema, class T>
result<T> decode_as(std::span<const uint64_t> words) {
  auto options = capnp::ReaderOptions{};
  // Honest messages refer to each word once. Exceeding this limit means shared words or elements of
  // size zero.
  options.traversalLimitInWords = std::min<uint64_t>(limits::wire_words, words.size());
  options.nestingLimit = 8;
  try {
    const auto* data = reinterpret_cast<const capnp::word*>(words.data());
    auto reader = capnp::FlatArrayMessageReader{kj::arrayPtr(data, words.size()), options};
    auto x = T{};
    read(reader.getRoot<Schema>(), x);
    return x;
  } catch (const kj::Exception& ex) {
    return fail(ec::malformed_message, ex.getDescription().cStr());
  }
}

} // namespace hicache::wire

/// Defines the codec of a type; for use in hicache::wire.
#define HICACHE_DEFINE_CODEC(T, Schema)                                                            \
  frame codec<T>::encode(const T& x) {                                                             \
    return encode_as<schema::Schema>(x);                                                           \
  }                                                                                                \
  result<T> codec<T>::decode(std::span<const uint64_t> words) {                                    \
    return decode_as<schema::Schema, T>(words);                                                    \
  }
