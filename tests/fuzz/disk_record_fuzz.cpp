// Headers of records on a disk that somebody else may have written, with a valid checksum and
// without.

#include "base/check.hpp"
#include "base/page_checksum.hpp"
#include "messages/disk_record.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace hicache;

constexpr auto checksum_offset = size_t{16};
constexpr auto message_offset = size_t{24};

void decode(std::span<const std::byte> header) {
  const auto size = disk_header_at(header);
  if (size)
    HICACHE_CHECK(*size > 0 && *size % disk_block_bytes == 0);
  auto record = decode_disk_record(header);
  if (!record) {
    HICACHE_CHECK(record.error().code == ec::corrupt_page);
    return;
  }
  HICACHE_CHECK(disk_record_bytes(*record) % disk_block_bytes == 0);
  record->version = disk_record_version;
  auto again = std::vector<std::byte>(disk_header_bytes(*record));
  encode_disk_record(*record, again);
  HICACHE_CHECK(decode_disk_record(again) == record);
}

/// Makes the checksum right, as somebody with write access could.
void seal(std::span<std::byte> header) {
  auto bytes = uint32_t{0};
  std::memcpy(&bytes, &header[8], sizeof(bytes));
  const auto message = std::span<const std::byte>{header}.subspan(
    message_offset, std::min<size_t>(bytes, header.size() - message_offset));
  const auto checksum = page_checksum({&message, 1});
  std::memcpy(&header[checksum_offset], &checksum, sizeof(checksum));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span{data, size});
  decode(input);
  auto header = std::vector<std::byte>(disk_block_bytes);
  std::memcpy(header.data(), input.data(), std::min(size, header.size()));
  seal(header);
  decode(header);
  return 0;
}
