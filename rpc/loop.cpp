#include "rpc/loop.hpp"

#include "base/check.hpp"
#include "rpc/limits.hpp"

#include <kj/async-unix.h>
#include <spdlog/spdlog.h>

#include <sys/eventfd.h>

#include <future>

namespace hicache {

namespace {

struct quiet_tasks final : kj::TaskSet::ErrorHandler {
  void taskFailed(kj::Exception&& ex) override {
    spdlog::debug("a connection's task ended: {}", ex.getDescription().cStr());
  }
};

} // namespace

rpc_loop::rpc_loop() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  HICACHE_CHECK(event_);
}

rpc_loop::~rpc_loop() {
  HICACHE_CHECK(!thread_.joinable());
}

std::shared_ptr<rpc_loop> rpc_loop::start() {
  auto loop = std::shared_ptr<rpc_loop>{new rpc_loop};
  auto is_running = std::promise<void>{};
  loop->thread_ = std::thread{[raw = loop.get()] { raw->run(); }};
  loop->post([&is_running] { is_running.set_value(); });
  is_running.get_future().wait();
  return loop;
}

bool rpc_loop::post(kj::Function<void()> work) {
  auto is_first = false;
  {
    const auto guard = std::lock_guard{mutex_};
    if (is_closed_)
      return false;
    is_first = posted_.empty();
    posted_.push_back(kj::mv(work));
  }
  // Unless it is the first, an earlier post has woken the loop.
  if (is_first && !is_here())
    wake_up();
  else if (is_first) // Run it after the events that are already queued.
    keep(kj::evalLast([this] { run_posted(); }));
  return true;
}

void rpc_loop::close() {
  HICACHE_CHECK(!is_here());
  post([this] { is_ending_ = true; });
  wake_up(); // Needed if the pending posts came from the loop's thread.
  if (thread_.joinable())
    thread_.join();
}

void rpc_loop::keep(kj::Promise<void> task) {
  tasks_->add(kj::mv(task));
}

void rpc_loop::run() {
  auto io = kj::setupAsyncIo();
  io.waitScope.setBusyPollInterval(rpc::limits::steps_between_looks);
  auto handler = quiet_tasks{};
  auto tasks = kj::heap<kj::TaskSet>(handler);
  io_ = &io;
  tasks_ = tasks.get();
  {
    auto event = kj::UnixEventPort::FdObserver{io.unixEventPort, event_.get(),
                                               kj::UnixEventPort::FdObserver::OBSERVE_READ};
    while (!is_ending_) {
      run_posted();
      // The observer is edge-triggered, so the event need not be read. A write from here on is
      // detected by the wait.
      if (!is_ending_)
        event.whenBecomesReadable().wait(io.waitScope);
    }
  }
  auto rest = std::vector<kj::Function<void()>>{};
  {
    const auto guard = std::lock_guard{mutex_};
    is_closed_ = true;
    rest.swap(posted_);
  }
  rest.clear();
  while (!at_end_.empty()) {
    auto work = kj::mv(at_end_.back());
    at_end_.pop_back();
    work();
  }
  tasks = nullptr;
  // Cap'n Proto's cancelled tasks end in the next turns, which must run before `io` destroys the
  // loop.
  io.waitScope.poll();
}

void rpc_loop::wake_up() {
  eventfd_write(event_.get(), 1);
}

void rpc_loop::run_posted() {
  auto work = std::vector<kj::Function<void()>>{};
  {
    const auto guard = std::lock_guard{mutex_};
    work.swap(posted_);
  }
  for (auto& each : work)
    each();
}

} // namespace hicache
