#pragma once

#include <atomic>
#include <cstdint>

namespace hicache {

/// Current contents of the disk under a node's memory, and its traffic since the start. Any thread.
struct disk_figures {
  /// Pages there, and their bytes with the headers.
  std::atomic<uint64_t> pages = 0;
  std::atomic<uint64_t> bytes = 0;
  /// Pages read into memory.
  std::atomic<uint64_t> read = 0;
  std::atomic<uint64_t> written = 0;
  /// Pages that left memory unwritten because the disk was too slow.
  std::atomic<uint64_t> skipped = 0;
  /// Pages that did not verify, or could not be read or written.
  std::atomic<uint64_t> failed = 0;
};

} // namespace hicache
