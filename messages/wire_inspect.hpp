#pragma once

// How CAF serialises the values of index_protocol.hpp: as one Cap'n Proto frame in one piece, not
// element by element.

#include "base/limits.hpp"
#include "messages/caf_error.hpp"
#include "messages/wire.hpp"

#include <caf/deserializer.hpp>
#include <caf/sec.hpp>
#include <caf/serializer.hpp>

#include <string>

namespace hicache {

/// @relates wire::codec
template <wire::wire_type T>
caf::error inspect(caf::serializer& sink, T& x) {
  auto words = wire::codec<T>::encode(x);
  auto count = uint64_t{words.size()};
  if (auto err = sink(count))
    return err;
  return sink.apply_raw(words.size() * sizeof(uint64_t), words.data());
}

/// @relates wire::codec
template <wire::wire_type T>
caf::error inspect(caf::deserializer& source, T& x) {
  auto count = uint64_t{0};
  if (auto err = source(count))
    return err;
  if (count > limits::wire_words)
    return to_caf({ec::malformed_message, "frame too long"});
  auto words = wire::frame(count);
  if (auto err = source.apply_raw(words.size() * sizeof(uint64_t), words.data()))
    return err;
  auto decoded = wire::codec<T>::decode(words);
  if (!decoded)
    return to_caf(decoded.error());
  x = std::move(*decoded);
  return caf::none;
}

/// For CAF's own error texts: the values are too large to print.
/// @relates wire::codec
template <wire::wire_type T>
std::string to_string(const T&) {
  return "frame";
}

} // namespace hicache
