#include "transport/shared_memory.hpp"

#include "base/check.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>

namespace hicache {

namespace {

using namespace literals;

/// MemAvailable of /proc/meminfo; empty if unknown.
std::optional<uint64_t> available_bytes() {
  auto file = std::ifstream{"/proc/meminfo"};
  auto name = std::string{};
  auto kibibytes = uint64_t{};
  auto unit = std::string{};
  while (file >> name >> kibibytes && std::getline(file, unit))
    if (name == "MemAvailable:")
      return kibibytes * 1024;
  return std::nullopt;
}

tl::unexpected<error> creation_error(uint64_t bytes, const std::string& reason) {
  const auto available = available_bytes();
  return fail(ec::io_failure, "cannot share " + format_bytes(bytes) + " (" + std::to_string(bytes)
                                + " bytes) of memory: " + reason + "; available: "
                                + (available ? format_bytes(*available) : "unknown"));
}

/// Sizes the memory behind `fd` and makes its first `resident` bytes resident.
result<void> populate(const unique_fd& fd, uint64_t bytes, uint64_t resident) {
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return creation_error(bytes, "ftruncate: " + system_message(errno));
  while (resident != 0 && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(resident)) != 0)
    if (errno != EINTR)
      return creation_error(bytes, "fallocate: " + system_message(errno));
  return {};
}

/// Memory in free huge pages of the machine's pool, each with one page table entry instead of 512.
unique_fd make_huge(uint64_t bytes, const std::string& name) {
  if (bytes % 2_MiB != 0)
    return {};
  // memfd_create takes the page size flags of mmap.
  auto fd = unique_fd{
    ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MAP_HUGE_2MB)};
  if (!fd || !populate(fd, bytes, bytes))
    return {};
  return fd;
}

/// @returns io_failure if there is not enough memory
result<unique_fd> make_plain(uint64_t bytes, uint64_t resident, const std::string& name) {
  // Reserving more than is available would trigger the OOM killer before the kernel refuses.
  if (const auto available = available_bytes(); available && bytes > *available)
    return creation_error(bytes, "not enough memory");
  auto fd = unique_fd{::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd)
    return creation_error(bytes, "memfd_create: " + system_message(errno));
  HICACHE_TRY(populate(fd, bytes, resident));
  return fd;
}

} // namespace

// -- mapped_peer_memory -------------------------------------------------------

result<mapped_peer_memory> mapped_peer_memory::open(const unique_fd& fd, unique_fd owner,
                                                    peer_access access) {
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0 || status.st_size <= 0)
    return fail(ec::io_failure, "a peer's memory has no size");
  const auto seals = ::fcntl(fd.get(), F_GET_SEALS);
  const auto is_named_file = S_ISREG(status.st_mode) && status.st_nlink > 0;
  if (!is_named_file && (seals < 0 || (seals & F_SEAL_SHRINK) == 0))
    return fail(ec::io_failure, "a peer's memory is neither sealed against shrinking nor a file");
  const auto size = static_cast<size_t>(status.st_size);
  const auto protection = access == peer_access::write ? PROT_READ | PROT_WRITE : PROT_READ;
  auto memory = unique_mapping::create(size, protection, MAP_SHARED, fd.get());
  if (!memory)
    return fail(ec::io_failure, "cannot map a peer's memory: " + system_message(errno));
  return mapped_peer_memory{std::move(memory), std::move(owner)};
}

mapped_peer_memory::~mapped_peer_memory() {
  memory_ = {};
  // Wakes watchers of the connection that hold a descriptor of their own.
  if (owner_)
    ::shutdown(owner_.get(), SHUT_RDWR);
}

// -- shared_memory ------------------------------------------------------------

result<shared_memory> shared_memory::create(uint64_t bytes, const std::string& name,
                                            peer_access access) {
  return create(bytes, bytes, name, access);
}

result<shared_memory> shared_memory::create(uint64_t bytes, uint64_t resident,
                                            const std::string& name, peer_access access) {
  HICACHE_CHECK(resident <= bytes);
  if (bytes == 0)
    return fail(ec::invalid_argument, "shared memory of 0 bytes was asked for");
  if (bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max()))
    return creation_error(bytes, "more than a file can hold");
  auto fd = resident == bytes ? make_huge(bytes, name) : unique_fd{};
  if (!fd)
    fd = HICACHE_TRY(make_plain(bytes, resident, name));
  auto memory = HICACHE_TRY(map(std::move(fd), bytes));
  // Fills the page tables now, which costs ten times as much as the copy that would fault the pages
  // in later. Kernels before 5.14 lack this; there the first pass over the memory is slow.
  static_cast<void>(::madvise(memory.data(), resident, MADV_POPULATE_WRITE));
  if (::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return creation_error(bytes, "F_ADD_SEALS: " + system_message(errno));
  // Peers get the descriptor, but only the mapping above may write. Kernels before 5.1 lack this
  // seal; there peers are merely asked not to write.
  if (access == peer_access::read)
    static_cast<void>(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
  return memory;
}

result<shared_memory> shared_memory::map_file(unique_fd fd, uint64_t bytes, uint64_t resident) {
  struct stat status = {};
  struct statfs system = {};
  if (::fstat(fd.get(), &status) != 0 || ::fstatfs(fd.get(), &system) != 0)
    return creation_error(bytes, "fstat: " + system_message(errno));
  // As in make_plain: avoids the OOM killer.
  const auto taken = static_cast<uint64_t>(status.st_blocks) * 512;
  const auto available = available_bytes();
  if (system.f_type == TMPFS_MAGIC && available && resident > taken
      && resident - taken > *available)
    return creation_error(bytes, "not enough memory");
  HICACHE_TRY(populate(fd, bytes, resident));
  return map(std::move(fd), bytes);
}

result<shared_memory> shared_memory::map(unique_fd fd, uint64_t bytes) {
  auto memory = unique_mapping::create(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get());
  if (!memory)
    return creation_error(bytes, "mmap: " + system_message(errno));
  return shared_memory{std::move(fd), std::move(memory)};
}

} // namespace hicache
