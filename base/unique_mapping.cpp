#include "base/unique_mapping.hpp"

#include <sys/mman.h>

namespace hicache {

unique_mapping unique_mapping::create(size_t bytes, int protection, int flags, int fd) noexcept {
  auto mapping = unique_mapping{};
  if (auto* address = ::mmap(nullptr, bytes, protection, flags, fd, 0); address != MAP_FAILED)
    mapping.memory_ = std::unique_ptr<std::byte, unmap>{static_cast<std::byte*>(address), {bytes}};
  return mapping;
}

void unique_mapping::unmap::operator()(std::byte* memory) const noexcept {
  ::munmap(memory, bytes);
}

} // namespace hicache
