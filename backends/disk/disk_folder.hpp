#pragma once

#include "backends/disk/disk_device.hpp"
#include "base/unique_fd.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// A transfer between memory and a segment's file, and how much of it is left.
struct file_transfer {
  int file = -1;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool is_write = false;
  uint64_t tag = 0;

  void advance(size_t moved) noexcept {
    memory += moved;
    offset += moved;
    bytes -= moved;
  }
};

/// Segments as preallocated files `segment-<8 digits>.log` in a folder that only one process uses.
/// As disk_device.
class disk_folder {
public:
  /// @param segment_bytes Whole blocks. Files of another length are removed.
  /// @returns io_failure with a sentence: the folder cannot be used, or another process uses it
  static result<std::unique_ptr<disk_folder>> open(const std::string& path, uint64_t segment_bytes);

  std::vector<uint32_t> segments() const;
  result<void> create(uint32_t segment);
  result<void> remove(uint32_t segment);
  result<void> sync(uint32_t segment);

  /// The descriptor of a segment's file.
  /// @pre the segment exists
  int file(uint32_t segment) const;

  /// Whether transfers with these descriptors bypass the page cache.
  bool bypasses_cache() const noexcept { return bypasses_cache_; }

private:
  disk_folder(std::string path, uint64_t segment_bytes)
    : path_(std::move(path)), segment_bytes_(segment_bytes) {}

  std::string path_of(uint32_t segment) const;
  unique_fd open_file(const std::string& path, int flags);
  result<void> open_all();
  void add(uint32_t segment, unique_fd file);

  const std::string path_;
  const uint64_t segment_bytes_;
  unique_fd folder_;
  unique_fd lock_;
  bool bypasses_cache_ = true;
  mutable std::shared_mutex mutex_; // Guards what follows.
  std::map<uint32_t, unique_fd> files_;
};

/// A channel between memory and the files of a folder.
class folder_channel : public disk_channel {
public:
  /// @param files Must outlive the channel.
  explicit folder_channel(const disk_folder& files) : files_(files) {}

  void read(uint32_t segment, uint64_t offset, std::span<std::byte> to, uint64_t tag) final {
    start({files_.file(segment), offset, to.data(), to.size(), false, tag});
  }

  void write(uint32_t segment, uint64_t offset, std::span<const std::byte> from,
             uint64_t tag) final {
    start(
      {files_.file(segment), offset, const_cast<std::byte*>(from.data()), from.size(), true, tag});
  }

private:
  virtual void start(file_transfer x) = 0;

  const disk_folder& files_;
};

} // namespace hicache
