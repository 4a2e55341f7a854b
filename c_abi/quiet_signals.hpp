#pragma once

#include "base/immovable.hpp"

#include <signal.h>

namespace hicache {

/// Keeps hicache's signal handling away from the program. During its lifetime, threads started by
/// this thread block all signals but those of faults; its destructor restores the handlers of
/// SIGPIPE and of kj's reserved signal (SIGUSR1), which libraries change, and the signal mask. A
/// write to a lost node does not terminate the program.
class quiet_signals : immovable {
public:
  quiet_signals() noexcept;

  ~quiet_signals();

private:
  sigset_t mask_;
  struct sigaction on_pipe_;
  struct sigaction on_user_;
};

} // namespace hicache
