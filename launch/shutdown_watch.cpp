#include "launch/shutdown_watch.hpp"

#include "base/check.hpp"

#include <spdlog/spdlog.h>

#include <unistd.h>

#include <cstdio>

namespace hicache {

shutdown_watch::~shutdown_watch() {
  if (!waiter_.joinable())
    return;
  {
    const auto lock = std::lock_guard{mutex_};
    is_over_ = true;
  }
  changed_.notify_all();
  waiter_.join();
}

void shutdown_watch::arm(std::chrono::nanoseconds time, int code) {
  HICACHE_CHECK(!waiter_.joinable());
  waiter_ = std::thread{[this, time, code] {
    auto lock = std::unique_lock{mutex_};
    if (changed_.wait_for(lock, time, [this] { return is_over_; }))
      return;
    spdlog::error("the rank does not end in time; the process ends without it");
    spdlog::default_logger()->flush();
    std::fflush(stdout);
    ::_exit(code);
  }};
}

} // namespace hicache
