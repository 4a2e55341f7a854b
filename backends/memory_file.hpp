#pragma once

#include "backends/cluster/lasting_memory.hpp"
#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "transport/shared_memory.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace hicache {

/// A file that is the memory of one process at a time and keeps its pages for the next one: on
/// tmpfs, hugetlbfs, or any other file system whose files can be mapped shared. The label takes its
/// last memory_label_bytes. Move-only.
class memory_file {
public:
  /// Opens or creates a file, and locks out other processes until this one ends. A file of hicache
  /// that this version cannot read is initialised, with a warning; others are only written to if
  /// empty.
  /// @param bytes Size of the file; the value of --memory, for messages.
  /// @pre bytes >= memory_label_bytes
  /// @returns invalid_argument with a sentence: it is in use, foreign, of another user or size, or
  /// cannot be opened; io_failure if there is no room
  static result<memory_file> open(const std::string& path, uint64_t bytes);

  /// The whole file, for processes that map it.
  const shared_memory& memory() const noexcept { return memory_; }

  /// Bytes for slots: all but the label, in whole cache lines.
  uint64_t page_bytes() const noexcept { return (memory_.size() - memory_label_bytes) / 64 * 64; }

  const lasting_memory& contents() const noexcept { return contents_; }

private:
  memory_file(unique_fd lock, shared_memory memory)
    : lock_(std::move(lock)), memory_(std::move(memory)) {}

  /// Reads the label; writes a new one if the memory cannot be used.
  void label(const std::string& path);

  /// A separate open file description: those of clients would keep the lock beyond this process.
  unique_fd lock_;
  shared_memory memory_;
  lasting_memory contents_;
};

} // namespace hicache
