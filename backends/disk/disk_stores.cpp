// The stores in folders, of disk_backend.hpp.

#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_files.hpp"
#include "backends/disk/hf3fs_files.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "messages/disk_record.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Makes a store of at most `max_bytes` on the device that `open_device(segment_bytes)` opens.
template <class OpenDevice>
result<std::unique_ptr<blocking_store>>
make_in_folder(const std::string& backend, const std::string& folder, uint64_t max_bytes,
               uint64_t fingerprint, const clock_source& clock, OpenDevice open_device) {
  constexpr auto least = uint64_t{16} << 20;
  if (max_bytes < least)
    return fail(ec::invalid_argument, "a " + backend + " store of " + format_bytes(max_bytes)
                                        + "; expected at least " + format_bytes(least));
  const auto segment_bytes = disk_segment_bytes(max_bytes);
  auto device = HICACHE_TRY(open_device(segment_bytes));
  return make_disk_backend({backend, folder, segment_bytes,
                            static_cast<uint32_t>(max_bytes / segment_bytes), 0, fingerprint},
                           std::move(device), clock);
}

} // namespace

uint64_t disk_segment_bytes(uint64_t store_bytes) {
  constexpr auto most = uint64_t{256} << 20;
  return std::min(most, store_bytes / 16 / disk_block_bytes * disk_block_bytes);
}

result<std::unique_ptr<blocking_store>> make_disk_backend(const std::string& folder,
                                                          uint64_t max_bytes, uint64_t fingerprint,
                                                          const clock_source& clock) {
  return make_in_folder("disk", folder, max_bytes, fingerprint, clock, [&](uint64_t segment_bytes) {
    return open_disk_files(folder, segment_bytes);
  });
}

result<std::unique_ptr<blocking_store>> make_hf3fs_backend(const std::string& folder,
                                                           uint64_t max_bytes, uint64_t fingerprint,
                                                           const hf3fs_options& options,
                                                           const clock_source& clock) {
  return make_in_folder(
    "hf3fs", folder, max_bytes, fingerprint, clock,
    [&](uint64_t segment_bytes) { return open_hf3fs_files(folder, segment_bytes, options); });
}

} // namespace hicache
