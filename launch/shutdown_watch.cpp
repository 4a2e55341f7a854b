#include "launch/shutdown_watch.hpp"

#include "base/check.hpp"

#include <spdlog/spdlog.h>

#include <unistd.h>

#include <cstdio>
#include <stop_token>

namespace hicache {

void shutdown_watch::arm(std::chrono::nanoseconds time, int code) {
  HICACHE_CHECK(!waiter_.joinable());
  waiter_ = std::jthread{[this, time, code](const std::stop_token& stop) {
    auto lock = std::unique_lock{mutex_};
    over_.wait_for(lock, stop, time, [] { return false; });
    if (stop.stop_requested())
      return;
    spdlog::error("the rank does not end in time; the process ends without it");
    spdlog::default_logger()->flush();
    std::fflush(stdout);
    ::_exit(code);
  }};
}

} // namespace hicache
