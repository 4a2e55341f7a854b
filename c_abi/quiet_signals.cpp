#include "c_abi/quiet_signals.hpp"

#include <initializer_list>

namespace hicache {

quiet_signals::quiet_signals() noexcept {
  sigaction(SIGPIPE, nullptr, &on_pipe_);
  sigaction(SIGUSR1, nullptr, &on_user_);
  auto all = sigset_t{};
  sigfillset(&all);
  for (const auto fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &mask_);
}

quiet_signals::~quiet_signals() {
  sigaction(SIGPIPE, &on_pipe_, nullptr);
  sigaction(SIGUSR1, &on_user_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
}

} // namespace hicache
