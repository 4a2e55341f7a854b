#pragma once

#include "backends/disk/disk_device.hpp"
#include "backends/disk/disk_log.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hicache {

/// Calls `visit` for each record of a segment, in order, until one follows that is not of the same
/// use of the segment.
void visit_records(disk_channel& channel, uint32_t segment, uint64_t segment_bytes,
                   const std::function<void(uint64_t offset, disk_record record)>& visit);

/// Fills a log with what the device's segments hold, several of them at a time. Records that may
/// not have been on the disk when the store ended are read. Records of other versions are ignored,
/// with a warning.
/// @param name As in disk_options.
/// @returns the copies of objects that do not verify, which a record must say before anything else
/// is written; io_failure; store_full
result<std::vector<disk_record::removal>> recover_log(disk_log& log, disk_device& device,
                                                      const std::string& name, uint32_t segments,
                                                      uint64_t segment_bytes);

} // namespace hicache
