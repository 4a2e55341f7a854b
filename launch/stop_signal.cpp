#include "launch/stop_signal.hpp"

#include "base/check.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>

namespace hicache {

namespace {

sigset_t watched_signals() {
  auto set = sigset_t{};
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  // Sent by the destructor to end the waiting thread.
  sigaddset(&set, SIGUSR2);
  return set;
}

} // namespace

stop_signal::stop_signal() : event_(eventfd(0, EFD_CLOEXEC)) {
  HICACHE_CHECK(event_);
  const auto set = watched_signals();
  HICACHE_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  waiter_ = std::thread{[this, set] {
    for (;;) {
      auto number = 0;
      if (sigwait(&set, &number) != 0 || number == SIGUSR2)
        return;
      if (raised_.exchange(number) != 0)
        std::_Exit(128 + number);
      eventfd_write(event_.get(), 1);
    }
  }};
}

stop_signal::~stop_signal() {
  pthread_kill(waiter_.native_handle(), SIGUSR2);
  waiter_.join();
}

bool stop_signal::wait_for(std::chrono::nanoseconds time) const {
  // The event is never read, so it stays readable for all waiters.
  auto watched = pollfd{event_.get(), POLLIN, 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  poll(&watched, 1, static_cast<int>(std::clamp<int64_t>(ms, 0, 1 << 30)));
  return raised();
}

} // namespace hicache
