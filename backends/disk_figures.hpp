#pragma once

#include <atomic>
#include <cstdint>

namespace hicache {

/// What the disk below a node's memory holds now, and what went to and from it since the start. Any
/// thread.
struct disk_figures {
  /// Pages, and the bytes of their files, whoever wrote them.
  std::atomic<uint64_t> pages = 0;
  std::atomic<uint64_t> bytes = 0;
  /// Pages read into memory.
  std::atomic<uint64_t> read = 0;
  std::atomic<uint64_t> written = 0;
  /// Pages that left memory before they were written, since the disk was slower.
  std::atomic<uint64_t> skipped = 0;
  /// Pages that did not verify, or could not be read or written.
  std::atomic<uint64_t> failed = 0;
};

} // namespace hicache
