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
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
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

// -- fields -------------------------------------------------------------------

/// The directions of a message. `fields(side, x)` names the fields of a struct once for both: an
/// encoder copies them to a message, a decoder from an untrusted one.
template <class Builder>
struct encoder {
  static constexpr auto decodes = false;
  Builder message;
};

template <class Reader>
struct decoder {
  static constexpr auto decodes = true;
  Reader message;
};

/// The type of `x` in `fields`: const for an encoder.
template <class T, class Struct>
concept like = std::same_as<std::remove_const_t<T>, Struct>;

template <class T, class Builder>
void put(const T& x, Builder to) {
  if constexpr (requires { write(x, to); })
    write(x, to);
  else
    fields(encoder<Builder>{to}, x);
}

template <class T, class ListBuilder>
void put(const std::vector<T>& xs, ListBuilder to) {
  for (auto i = 0u; i < to.size(); ++i)
    if constexpr (std::is_arithmetic_v<T>)
      to.set(i, xs[i]);
    else
      put(xs[i], to[i]);
}

template <class Reader, class T>
void get(Reader from, T& x) {
  if constexpr (std::is_arithmetic_v<T>)
    x = from;
  else if constexpr (requires { read(from, x); })
    read(from, x);
  else
    fields(decoder<Reader>{from}, x);
}

/// @param last The largest value.
template <class Number, class Enum>
void get(Number from, Enum& x, Enum last) {
  KJ_REQUIRE(static_cast<uint64_t>(from) <= static_cast<uint64_t>(last), "no such value");
  x = static_cast<Enum>(from);
}

inline void get(capnp::Text::Reader from, std::string& x, size_t text_max = 256) {
  x = text(from, text_max);
}

template <class T, class ListReader>
void get(ListReader from, std::vector<T>& xs, size_t count_max) {
  KJ_REQUIRE(from.size() <= count_max, "list too long");
  xs.resize(from.size());
  for (auto i = 0u; i < from.size(); ++i)
    get(from[i], xs[i]);
}

/// A field, in `fields(side, x)`.
/// @param ... The bound of a list; that of a text, unless it is 256 bytes; the last value of an
/// enumeration.
#define HICACHE_FIELD(name, Name, ...)                                                             \
  if constexpr (side.decodes)                                                                      \
    get(side.message.get##Name(), x.name __VA_OPT__(, ) __VA_ARGS__);                              \
  else if constexpr (std::is_enum_v<decltype(x.name)>)                                             \
    side.message.set##Name(static_cast<decltype(side.message.get##Name())>(x.name));               \
  else if constexpr (requires { side.message.set##Name(x.name); })                                 \
    side.message.set##Name(x.name);                                                                \
  else if constexpr (requires { x.name.size(); })                                                  \
    put(x.name, side.message.init##Name(size_of(x.name)));                                         \
  else                                                                                             \
    put(x.name, side.message.init##Name())

/// What holds for a valid struct, in `fields(side, x)`.
#define HICACHE_VALID(condition, otherwise)                                                        \
  if constexpr (side.decodes) {                                                                    \
    KJ_REQUIRE(condition, otherwise);                                                              \
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

/// Defines the functions of a message by its `fields`; for use in hicache::wire.
#define HICACHE_DEFINE_MESSAGE(T, Schema)                                                          \
  void write(const T& x, schema::Schema::Builder to) {                                             \
    fields(encoder<schema::Schema::Builder>{to}, x);                                               \
  }                                                                                                \
  void read(schema::Schema::Reader from, T& x) {                                                   \
    fields(decoder<schema::Schema::Reader>{from}, x);                                              \
  }                                                                                                \
  frame codec<T>::encode(const T& x) {                                                             \
    return encode_as<schema::Schema>(x);                                                           \
  }                                                                                                \
  result<T> codec<T>::decode(std::span<const uint64_t> words) {                                    \
    return decode_as<schema::Schema, T>(words);                                                    \
  }
