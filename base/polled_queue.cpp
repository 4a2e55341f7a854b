#include "base/polled_queue.hpp"

#include "base/system_message.hpp"

#include <sys/eventfd.h>

#include <cerrno>

namespace hicache {

result<void> polled_queue::start() {
  event_ = unique_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!event_)
    return fail(ec::io_failure, "cannot make an eventfd: " + system_message(errno));
  return {};
}

void polled_queue::close() {
  auto guard = std::unique_lock{mutex_};
  is_closed_ = true;
  changed_.notify_all();
  changed_.wait(guard, [this] { return waiters_ == 0; });
}

void polled_queue::added(bool is_first) {
  if (is_first)
    eventfd_write(event_.get(), 1);
  changed_.notify_all();
}

void polled_queue::emptied() {
  auto count = eventfd_t{};
  eventfd_read(event_.get(), &count);
}

} // namespace hicache
