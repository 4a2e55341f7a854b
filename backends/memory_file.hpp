#pragma once

#include "backends/cluster/lasting_memory.hpp"
#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "transport/shared_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace hicache {

/// A file that is the memory of one process at a time, and keeps its pages for the next one: on
/// tmpfs, hugetlbfs, or any other file system whose files can be mapped shared. Its last
/// memory_label_bytes are its label. Move-only.
class memory_file {
public:
  /// Opens a file, or makes it, and keeps other processes from doing so until this one ends. A file
  /// that is ours and cannot be read by this version begins from nothing, with a warning; one that
  /// is not ours is never written to, unless it is empty.
  /// @param bytes Of the file; --memory, for sentences.
  /// @pre bytes >= memory_label_bytes
  /// @returns invalid_argument with a sentence: it is in use, not ours, of another user or
  /// size, or cannot be opened; io_failure if there is no room
  static result<memory_file> open(const std::string& path, uint64_t bytes);

  /// All of the file, for those who shall map it.
  const shared_memory& memory() const noexcept { return memory_; }

  /// Bytes for slots: all but the label, in whole cache lines.
  uint64_t page_bytes() const noexcept;

  const lasting_memory& contents() const noexcept { return contents_; }

private:
  memory_file(unique_fd lock, shared_memory memory)
    : lock_(std::move(lock)), memory_(std::move(memory)) {}

  /// Learns from the label what is in the memory; makes another label if that cannot be used.
  void label(const std::string& path);

  /// A description of its own: those that clients have would keep the lock beyond this process.
  unique_fd lock_;
  shared_memory memory_;
  lasting_memory contents_;
};

} // namespace hicache
