// What stands in front of a page in L3: bytes of a slot that another process may be writing to.

#include "base/check.hpp"
#include "messages/page_header.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hicache;
  const auto header = decode_page_header(std::as_bytes(std::span{data, size}));
  if (!header) {
    HICACHE_CHECK(header.error().code == ec::corrupt_page);
    return 0;
  }
  auto encoded = std::array<std::byte, page_header_bytes>{};
  encode_page_header(*header, encoded);
  const auto again = decode_page_header(encoded);
  HICACHE_CHECK(again && *again == *header);
  return 0;
}
