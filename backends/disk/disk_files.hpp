#pragma once

#include "backends/disk/disk_device.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

/// Segments in a disk_folder. Transfers bypass the page cache where the file system can, and go
/// through io_uring where the kernel allows, with registered memory where it allows that; else each
/// is done when it is started.
/// @param may_use_uring False to do without; for tests and measurements.
/// @returns as disk_folder::open
result<std::unique_ptr<disk_device>>
open_disk_files(const std::string& folder, uint64_t segment_bytes, bool may_use_uring = true);

} // namespace hicache
