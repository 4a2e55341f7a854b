#pragma once

#include "backends/disk/disk_device.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

struct hf3fs_options {
  /// 3FS's library, as for dlopen.
  std::string library = "libhf3fs_api_shared.so";
  /// Where 3FS is mounted; empty: found by the folder.
  std::string mount_point = {};
};

/// Segments in a disk_folder on 3FS. Transfers go through rings and memory that are shared with the
/// 3FS daemon, past FUSE.
/// @returns as disk_folder::open; also unsupported: there is no library, or the folder is not on
/// 3FS; io_failure: the daemon gives no memory or rings
result<std::unique_ptr<disk_device>>
open_hf3fs_files(const std::string& folder, uint64_t segment_bytes, const hf3fs_options& options);

} // namespace hicache
