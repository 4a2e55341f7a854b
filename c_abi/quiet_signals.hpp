#pragma once

#include <signal.h>

namespace hicache {

/// While this lives, the threads that this one starts take no signals, those aside that say that
/// the program is wrong; and what libraries make of SIGPIPE and of the signal that kj keeps for
/// itself is taken back at the end. So a program that uses hicache goes on with its signals as they
/// were, and a write to a node that is gone does not end it.
class quiet_signals {
public:
  quiet_signals() noexcept;

  quiet_signals(const quiet_signals&) = delete;

  quiet_signals& operator=(const quiet_signals&) = delete;

  ~quiet_signals();

private:
  sigset_t mask_;
  struct sigaction on_pipe_;
  struct sigaction on_user_;
};

} // namespace hicache
