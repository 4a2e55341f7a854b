#pragma once

#include "base/unique_fd.hpp"

#include <kj/async-io.h>
#include <kj/function.h>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hicache {

/// A thread that runs kj's event loop; all objects of kj and Cap'n Proto live on it. Shared by the
/// threads that post to it, which may outlive it.
class rpc_loop : public std::enable_shared_from_this<rpc_loop> {
public:
  static std::shared_ptr<rpc_loop> start();

  ~rpc_loop();

  // -- any thread -------------------------------------------------------------

  /// Runs `work` on the loop's thread, in the order of the calls.
  /// @returns false if the loop has ended: then `work` was destroyed here
  bool post(kj::Function<void()> work);

  bool is_here() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

  /// Ends the thread and the tasks kept. Must not be called on the loop's thread.
  void close();

  // -- the loop's thread ------------------------------------------------------

  kj::LowLevelAsyncIoProvider& provider() const { return *io_->lowLevelProvider; }

  kj::Timer& timer() const { return io_->provider->getTimer(); }

  /// Keeps a task until it or the loop ends; its outcome is ignored.
  void keep(kj::Promise<void> task);

  /// Runs `work` before the loop ends, in reverse order of registration.
  void at_end(kj::Function<void()> work) { at_end_.push_back(kj::mv(work)); }

private:
  rpc_loop();

  void run();

  void run_posted();

  void wake_up();

  unique_fd event_;
  std::mutex mutex_; // Guards what follows.
  std::vector<kj::Function<void()>> posted_;
  bool is_closed_ = false;
  // Loop thread only.
  bool is_ending_ = false;
  kj::AsyncIoContext* io_ = nullptr;
  kj::TaskSet* tasks_ = nullptr;
  std::vector<kj::Function<void()>> at_end_;
  std::thread thread_;
};

} // namespace hicache
