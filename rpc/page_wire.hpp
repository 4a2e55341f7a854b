#pragma once

// The fields of page_transfer.hpp's parts of messages, and what encodes and decodes them.

#include "messages/wire_parts.hpp"
#include "rpc/page_transfer.hpp"

namespace hicache::wire {

void fields(auto side, like<page_piece> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(offset, Offset);
  HICACHE_FIELD(length, Length);
}

void fields(auto side, like<page_range> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(place, Place);
  HICACHE_FIELD(generation, Generation);
  HICACHE_FIELD(offset, Offset);
  HICACHE_FIELD(length, Length);
}

void fields(auto side, like<range_origin> auto& x) {
  HICACHE_FIELD(status, Status, range_status::damaged);
  HICACHE_FIELD(fingerprint, Fingerprint);
  HICACHE_FIELD(checksum, Checksum);
}

} // namespace hicache::wire
