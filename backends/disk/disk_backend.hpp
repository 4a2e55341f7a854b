#pragma once

#include "backends/blocking_store.hpp"
#include "backends/disk/disk_device.hpp"
#include "backends/disk/hf3fs_files.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

struct disk_options {
  /// The name by which users select the store.
  std::string backend = "disk";
  /// Where it is, for messages.
  std::string name;
  uint64_t segment_bytes = 0;
  /// Most segments; at least disk_log::segments_min.
  uint32_t segments = 0;
  /// Most bytes of objects, each in whole blocks; 0: as many as leave room to clean.
  uint64_t live_bytes = 0;
  /// `fingerprint_of` the namespace of objects that are written without one.
  uint64_t fingerprint = 0;
};

/// Bytes of a segment of a store of so many bytes: 256 MiB, or a sixteenth of a small store.
uint64_t disk_segment_bytes(uint64_t store_bytes);

/// Objects in a log of large segments, for one process (docs/backends.md, "disk"). A write is
/// answered when its objects are on the disk. After a crash the objects of all answered writes are
/// there, and every object that the store says it has verifies.
/// @param clock Must outlive the store.
/// @returns io_failure or store_full with a sentence
result<std::unique_ptr<blocking_store>> make_disk_backend(disk_options options,
                                                          std::unique_ptr<disk_device> device,
                                                          const clock_source& clock);

/// The same in a folder, of at most `max_bytes`.
/// @param fingerprint As in disk_options.
/// @returns also invalid_argument: max_bytes is too small
result<std::unique_ptr<blocking_store>> make_disk_backend(const std::string& folder,
                                                          uint64_t max_bytes, uint64_t fingerprint,
                                                          const clock_source& clock);

/// The same in a folder on 3FS (docs/backends.md, "hf3fs").
/// @returns also unsupported: there is no library, or no 3FS
result<std::unique_ptr<blocking_store>> make_hf3fs_backend(const std::string& folder,
                                                           uint64_t max_bytes, uint64_t fingerprint,
                                                           const hf3fs_options& options,
                                                           const clock_source& clock);

} // namespace hicache
