#pragma once

namespace hicache {

/// Owns a file descriptor. Move-only.
class unique_fd {
public:
  unique_fd() = default;

  explicit unique_fd(int fd) noexcept : fd_(fd) {}

  unique_fd(unique_fd&& other) noexcept;

  unique_fd& operator=(unique_fd&& other) noexcept;

  ~unique_fd();

  /// @returns -1 if there is none
  int get() const noexcept { return fd_; }

  /// Gives up ownership.
  int release() noexcept;

  explicit operator bool() const noexcept { return fd_ >= 0; }

private:
  int fd_ = -1;
};

} // namespace hicache
