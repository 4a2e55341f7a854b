#pragma once

#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>

/// What hicache uses of 3FS's interface for transfers that bypass FUSE ("usrbio"), as declared in
/// src/lib/api/hf3fs_usrbio.h of github.com/deepseek-ai/3FS. Memory that the 3FS daemon maps is an
/// iov; a ring of transfers, all reads or all writes, is an ior.
extern "C" {

struct hf3fs_iov {
  uint8_t* base;
  void* iovh;
  char id[16];
  char mount_point[256];
  size_t size;
  size_t block_size;
  int numa;
};

struct hf3fs_ior {
  hf3fs_iov iov;
  void* iorh;
  char mount_point[256];
  bool for_read;
  int io_depth;
  int priority;
  int timeout;
  uint64_t flags;
};

struct hf3fs_cqe {
  int32_t index;
  int32_t reserved;
  int64_t result;
  const void* userdata;
};

} // extern "C"

namespace hicache {

/// Functions of the library. Those that answer an int answer a negative errno value if they fail,
/// reg_fd a positive one.
struct hf3fs_library {
  bool (*is_hf3fs)(int fd) = nullptr;
  /// Bytes of the mount point with its zero, also if they are more than `size`; -1: none.
  int (*extract_mount_point)(char* mount_point, int size, const char* path) = nullptr;
  int (*iovcreate)(hf3fs_iov* iov, const char* mount_point, size_t size, size_t block_size,
                   int numa)
    = nullptr;
  void (*iovdestroy)(hf3fs_iov* iov) = nullptr;
  int (*iorcreate4)(hf3fs_ior* ior, const char* mount_point, int entries, bool for_read,
                    int io_depth, int timeout, int numa, uint64_t flags)
    = nullptr;
  void (*iordestroy)(hf3fs_ior* ior) = nullptr;
  int (*reg_fd)(int fd, uint64_t flags) = nullptr;
  void (*dereg_fd)(int fd) = nullptr;
  /// For one thread of a ring at a time.
  int (*prep_io)(const hf3fs_ior* ior, const hf3fs_iov* iov, bool read, void* memory, int fd,
                 size_t offset, uint64_t bytes, const void* userdata)
    = nullptr;
  int (*submit_ios)(const hf3fs_ior* ior) = nullptr;
  int (*wait_for_ios)(const hf3fs_ior* ior, hf3fs_cqe* ended, int count, int least,
                      const timespec* until)
    = nullptr;
};

/// Loads the library, for as long as the process runs.
/// @param name As for dlopen.
/// @returns unsupported with a sentence
result<hf3fs_library> load_hf3fs(const std::string& name);

} // namespace hicache
