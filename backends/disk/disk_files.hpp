#pragma once

#include "backends/disk/disk_device.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

/// Segments as preallocated files `segment-<8 digits>.log` in a folder that only one process uses.
/// Transfers bypass the page cache where the file system can, and go through io_uring where the
/// kernel allows, with registered memory where it allows that; else each is done when it is
/// started.
/// @param segment_bytes Whole blocks. Files of another length are removed.
/// @param may_use_uring False to do without; for tests and measurements.
/// @returns io_failure with a sentence: the folder cannot be used, or another process uses it
result<std::unique_ptr<disk_device>>
open_disk_files(const std::string& folder, uint64_t segment_bytes, bool may_use_uring = true);

} // namespace hicache
