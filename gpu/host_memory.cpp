#include "gpu/host_memory.hpp"

#include "base/check.hpp"
#include "base/units.hpp"

#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace hicache {

namespace {

class mapped_memory final : public device_memory {
public:
  mapped_memory(void* address, uint64_t bytes)
    : data_(static_cast<std::byte*>(address)), size_(bytes) {}

  ~mapped_memory() override { ::munmap(data_, size_); }

  std::byte* data() noexcept override { return data_; }

  uint64_t size() const noexcept override { return size_; }

  result<void> write(uint64_t offset, std::span<const std::byte> bytes) override {
    HICACHE_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    if (!bytes.empty())
      std::memcpy(data_ + offset, bytes.data(), bytes.size());
    return {};
  }

  result<void> read(uint64_t offset, std::span<std::byte> bytes) const override {
    HICACHE_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    if (!bytes.empty())
      std::memcpy(bytes.data(), data_ + offset, bytes.size());
    return {};
  }

private:
  std::byte* data_;
  uint64_t size_;
};

/// MemAvailable of the machine; nothing where the kernel does not say.
std::optional<uint64_t> available_memory() {
  auto file = std::ifstream{"/proc/meminfo"};
  auto name = std::string{};
  auto kibibytes = uint64_t{0};
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:")
      return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

} // namespace

result<void> check_memory_available(uint64_t bytes) {
  if (const auto available = available_memory(); available && bytes > *available)
    return fail(ec::io_failure, "cannot allocate " + format_bytes(bytes) + " of memory: only "
                                  + format_bytes(*available) + " are available");
  return {};
}

result<std::unique_ptr<device_memory>> allocate_host_memory(uint64_t bytes) {
  HICACHE_CHECK(bytes > 0);
  if (auto checked = check_memory_available(bytes); !checked)
    return tl::unexpected{checked.error()};
  auto* address
    = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    return fail(ec::io_failure, "cannot allocate " + format_bytes(bytes)
                                  + " of memory: mmap: " + std::strerror(errno));
  // Fewer page faults and TLB misses; a kernel without huge pages ignores it.
  ::madvise(address, bytes, MADV_HUGEPAGE);
  return std::make_unique<mapped_memory>(address, bytes);
}

} // namespace hicache
