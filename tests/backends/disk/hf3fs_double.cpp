// A double of 3FS's library for transfers that bypass FUSE, over plain files. A folder counts as
// the mount point of a 3FS if it has the folder 3fs-virt, and gives memory and rings if that has
// the folder iovs. While it has a file named "fails", transfers fail. The last transfer ends first,
// some move only a part of their bytes, and what was never written reads as nothing.

#include "backends/disk/hf3fs_library.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr auto block_bytes = uint64_t{4096};

struct transfer {
  std::byte* memory = nullptr;
  int file = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  const void* userdata = nullptr;
};

struct transfer_ring {
  size_t entries = 0;
  std::vector<transfer> waiting;
  uint64_t ended = 0;
};

/// Descriptors that may be used.
struct {
  std::mutex mutex;
  std::set<int> files;
} registered;

/// Empty: the path is not on 3FS.
std::string mount_point_of(fs::path path) {
  while (!fs::exists(path / "3fs-virt")) {
    if (path == path.parent_path())
      return {};
    path = path.parent_path();
  }
  return path;
}

/// @returns 0, or a negative errno value
int check_mount_point(const char* mount_point) {
  const auto path = std::string{mount_point};
  if (path.empty() || path.size() >= sizeof(hf3fs_iov::mount_point))
    return -EINVAL;
  return fs::exists(path + "/3fs-virt/iovs") ? 0 : -ENOENT;
}

transfer_ring& ring_of(const hf3fs_ior* ior) {
  return *static_cast<transfer_ring*>(ior->iorh);
}

int64_t run(const hf3fs_ior& ior, const transfer& x) {
  if (fs::exists(std::string{ior.mount_point} + "/fails"))
    return -EIO;
  const auto is_cut = ++ring_of(&ior).ended % 3 == 0 && x.bytes >= 2 * block_bytes;
  const auto bytes = is_cut ? x.bytes / 2 / block_bytes * block_bytes : x.bytes;
  const auto offset = static_cast<off_t>(x.offset);
  if (ior.for_read) {
    const auto data = ::lseek(x.file, offset, SEEK_DATA);
    if (data < 0 || data >= offset + static_cast<off_t>(bytes))
      return 0;
  }
  const auto moved = ior.for_read ? ::pread(x.file, x.memory, bytes, offset)
                                  : ::pwrite(x.file, x.memory, bytes, offset);
  return moved < 0 ? -errno : moved;
}

} // namespace

extern "C" {

bool hf3fs_is_hf3fs(int fd) {
  auto failed = std::error_code{};
  const auto path = fs::read_symlink("/proc/self/fd/" + std::to_string(fd), failed);
  return !failed && !mount_point_of(path).empty();
}

int hf3fs_extract_mount_point(char* mount_point, int size, const char* path) {
  const auto found = mount_point_of(fs::canonical(path));
  if (found.empty())
    return -1;
  const auto bytes = static_cast<int>(found.size()) + 1;
  if (bytes <= size)
    std::memcpy(mount_point, found.c_str(), static_cast<size_t>(bytes));
  return bytes;
}

int hf3fs_iovcreate(hf3fs_iov* iov, const char* mount_point, size_t size, size_t, int) {
  if (const auto failed = check_mount_point(mount_point); failed != 0)
    return failed;
  auto* const memory
    = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return -errno;
  iov->base = static_cast<uint8_t*>(memory);
  iov->iovh = memory;
  iov->size = size;
  return 0;
}

void hf3fs_iovdestroy(hf3fs_iov* iov) {
  ::munmap(iov->base, iov->size);
}

int hf3fs_iorcreate4(hf3fs_ior* ior, const char* mount_point, int entries, bool for_read, int, int,
                     int, uint64_t) {
  if (const auto failed = check_mount_point(mount_point); failed != 0)
    return failed;
  ior->iorh = new transfer_ring{static_cast<size_t>(entries), {}, 0};
  std::strcpy(ior->mount_point, mount_point);
  ior->for_read = for_read;
  return 0;
}

void hf3fs_iordestroy(hf3fs_ior* ior) {
  delete &ring_of(ior);
}

int hf3fs_reg_fd(int fd, uint64_t) {
  if (!hf3fs_is_hf3fs(fd))
    return EBADF;
  const auto lock = std::scoped_lock{registered.mutex};
  return registered.files.insert(fd).second ? -fd : EINVAL;
}

void hf3fs_dereg_fd(int fd) {
  const auto lock = std::scoped_lock{registered.mutex};
  registered.files.erase(fd);
}

int hf3fs_prep_io(const hf3fs_ior* ior, const hf3fs_iov* iov, bool read, void* memory, int fd,
                  size_t offset, uint64_t bytes, const void* userdata) {
  const auto* const begin = static_cast<uint8_t*>(memory);
  if (read != ior->for_read || bytes == 0 || begin < iov->base
      || begin + bytes > iov->base + iov->size)
    return -EINVAL;
  {
    const auto lock = std::scoped_lock{registered.mutex};
    if (!registered.files.contains(fd))
      return -EBADF;
  }
  auto& ring = ring_of(ior);
  // A ring keeps an entry free.
  if (ring.waiting.size() + 1 >= ring.entries)
    return -EAGAIN;
  ring.waiting.push_back({static_cast<std::byte*>(memory), fd, offset, bytes, userdata});
  return static_cast<int>(ring.waiting.size() - 1);
}

int hf3fs_submit_ios(const hf3fs_ior*) {
  return 0;
}

int hf3fs_wait_for_ios(const hf3fs_ior* ior, hf3fs_cqe* ended, int count, int least,
                       const timespec*) {
  auto& waiting = ring_of(ior).waiting;
  // 3FS would wait for ever.
  if (waiting.size() < static_cast<size_t>(least))
    return -EINVAL;
  auto filled = 0;
  for (; filled < count && !waiting.empty(); ++filled) {
    const auto last = waiting.back();
    waiting.pop_back();
    ended[filled] = {static_cast<int32_t>(waiting.size()), 0, run(*ior, last), last.userdata};
  }
  return filled;
}

} // extern "C"

// Each is what is called.
using hicache::hf3fs_library;
static_assert(std::is_same_v<decltype(&hf3fs_is_hf3fs), decltype(hf3fs_library::is_hf3fs)>);
static_assert(std::is_same_v<decltype(&hf3fs_extract_mount_point),
                             decltype(hf3fs_library::extract_mount_point)>);
static_assert(std::is_same_v<decltype(&hf3fs_iovcreate), decltype(hf3fs_library::iovcreate)>);
static_assert(std::is_same_v<decltype(&hf3fs_iovdestroy), decltype(hf3fs_library::iovdestroy)>);
static_assert(std::is_same_v<decltype(&hf3fs_iorcreate4), decltype(hf3fs_library::iorcreate4)>);
static_assert(std::is_same_v<decltype(&hf3fs_iordestroy), decltype(hf3fs_library::iordestroy)>);
static_assert(std::is_same_v<decltype(&hf3fs_reg_fd), decltype(hf3fs_library::reg_fd)>);
static_assert(std::is_same_v<decltype(&hf3fs_dereg_fd), decltype(hf3fs_library::dereg_fd)>);
static_assert(std::is_same_v<decltype(&hf3fs_prep_io), decltype(hf3fs_library::prep_io)>);
static_assert(std::is_same_v<decltype(&hf3fs_submit_ios), decltype(hf3fs_library::submit_ios)>);
static_assert(std::is_same_v<decltype(&hf3fs_wait_for_ios), decltype(hf3fs_library::wait_for_ios)>);
