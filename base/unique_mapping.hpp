#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace hicache {

/// Owns mapped memory. Move-only.
class unique_mapping {
public:
  unique_mapping() = default;

  /// @param protection, flags, fd As for mmap().
  /// @returns an empty one, with errno, if the memory cannot be mapped
  static unique_mapping create(size_t bytes, int protection, int flags, int fd = -1) noexcept;

  /// Null if there is none.
  std::byte* data() const noexcept { return memory_.get(); }

  size_t size() const noexcept { return memory_ ? memory_.get_deleter().bytes : 0; }

  std::span<std::byte> bytes() const noexcept { return {data(), size()}; }

  explicit operator bool() const noexcept { return memory_ != nullptr; }

private:
  struct unmap {
    void operator()(std::byte* memory) const noexcept;

    size_t bytes;
  };

  std::unique_ptr<std::byte, unmap> memory_;
};

} // namespace hicache
