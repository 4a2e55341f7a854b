#include "messages/store_protocol.hpp"

#include "messages/wire_parts.hpp"

namespace hicache::wire {

namespace {

/// Settings and sentences of others.
constexpr auto long_text = size_t{64} << 10;

} // namespace

void fields(auto side, like<store_slot> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(parent, Parent);
  HICACHE_FIELD(offset, Offset);
  HICACHE_FIELD(bytes, Bytes);
}

void fields(auto side, like<store_outcome> auto& x) {
  HICACHE_FIELD(status, Status, store_status::misfit);
  HICACHE_FIELD(bytes, Bytes);
  HICACHE_FIELD(detail, Detail, long_text);
}

void fields(auto side, like<store_listed> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(bytes, Bytes);
}

void fields(auto side, like<store_hello> auto& x) {
  HICACHE_FIELD(version, Version);
  HICACHE_FIELD(window_bytes, WindowBytes);
  HICACHE_FIELD(options, Options, long_text);
}

void fields(auto side, like<store_welcome> auto& x) {
  HICACHE_FIELD(error, Error, long_text);
  HICACHE_FIELD(name, Name);
  HICACHE_FIELD(survives_restarts, SurvivesRestarts);
  HICACHE_FIELD(is_shared, IsShared);
  HICACHE_FIELD(tells_lengths, TellsLengths);
  HICACHE_FIELD(preferred_batch, PreferredBatch);
  HICACHE_FIELD(preferred_object_bytes, PreferredObjectBytes);
  HICACHE_FIELD(removes, Removes);
  HICACHE_FIELD(lists, Lists);
}

void fields(auto side, like<store_request> auto& x) {
  HICACHE_FIELD(number, Number);
  HICACHE_FIELD(kind, Kind, store_request_kind::list);
  HICACHE_FIELD(milliseconds, Milliseconds);
  HICACHE_FIELD(objects, Objects, store_request_objects);
  HICACHE_FIELD(start, Start, long_text);
}

void fields(auto side, like<store_answer> auto& x) {
  HICACHE_FIELD(number, Number);
  HICACHE_FIELD(error, Error, long_text);
  HICACHE_FIELD(objects, Objects, store_request_objects);
  HICACHE_FIELD(is_ok, IsOk);
  HICACHE_FIELD(detail, Detail, long_text);
  HICACHE_FIELD(listed, Listed, store_request_objects);
  HICACHE_FIELD(next, Next, long_text);
}

HICACHE_STORE_MESSAGES(HICACHE_DEFINE_MESSAGE)

} // namespace hicache::wire
