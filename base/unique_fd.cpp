#include "base/unique_fd.hpp"

#include <unistd.h>

#include <utility>

namespace hicache {

unique_fd::unique_fd(unique_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

unique_fd& unique_fd::operator=(unique_fd&& other) noexcept {
  auto old = unique_fd{std::exchange(fd_, std::exchange(other.fd_, -1))};
  return *this;
}

int unique_fd::release() noexcept {
  return std::exchange(fd_, -1);
}

unique_fd::~unique_fd() {
  if (fd_ >= 0)
    ::close(fd_);
}

} // namespace hicache
