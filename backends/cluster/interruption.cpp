#include "backends/cluster/interruption.hpp"

#include "base/check.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

namespace hicache {

interruption::interruption() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  HICACHE_CHECK(event_);
}

void interruption::raise() {
  raised_.store(true, std::memory_order_release);
  eventfd_write(event_.get(), 1);
  const auto lock = std::lock_guard{mutex_};
  if (socket_)
    shutdown(socket_.get(), SHUT_RDWR);
}

void interruption::guard(int socket) {
  const auto lock = std::lock_guard{mutex_};
  socket_ = unique_fd{fcntl(socket, F_DUPFD_CLOEXEC, 0)};
  if (is_raised())
    shutdown(socket_.get(), SHUT_RDWR);
}

void interruption::unguard() {
  const auto lock = std::lock_guard{mutex_};
  socket_ = {};
}

} // namespace hicache
