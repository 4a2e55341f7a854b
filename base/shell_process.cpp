#include "base/shell_process.hpp"

#include "base/system_message.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace hicache {

namespace {

/// Waits until the process can be reaped, or for this time.
void wait_for_end(pid_t id, std::chrono::milliseconds time) {
  const auto end = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, id, 0))};
  auto waiting = pollfd{end.get(), POLLIN, 0};
  while (::poll(&waiting, 1, static_cast<int>(time.count())) < 0 && errno == EINTR)
    continue;
}

} // namespace

result<shell_process> shell_process::start(const std::string& command, descriptors given) {
  auto actions = posix_spawn_file_actions_t{};
  auto attributes = posix_spawnattr_t{};
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const auto& [ours, theirs] : given)
    posix_spawn_file_actions_adddup2(&actions, ours, theirs);
  auto no_signals = sigset_t{};
  sigemptyset(&no_signals);
  posix_spawnattr_setsigmask(&attributes, &no_signals);
  posix_spawnattr_setflags(&attributes,
                           static_cast<short>(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK));
  auto shell = std::string{"/bin/sh"};
  auto option = std::string{"-c"};
  auto text = command;
  const auto arguments = std::array<char*, 4>{shell.data(), option.data(), text.data(), nullptr};
  auto id = pid_t{0};
  const auto failed
    = ::posix_spawn(&id, shell.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0)
    return fail(ec::io_failure, system_message(failed));
  return shell_process{id};
}

shell_process::~shell_process() {
  if (id_ == 0)
    return;
  ::kill(-id_, SIGKILL);
  while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR)
    continue;
}

std::optional<int> shell_process::await(std::chrono::milliseconds time) {
  if (id_ == 0)
    return status_;
  wait_for_end(id_, time);
  auto ended = siginfo_t{};
  if (::waitid(P_PID, static_cast<id_t>(id_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0
      && ended.si_pid == id_) {
    // What it started may still run. Until it is reaped, no other group has its number.
    ::kill(-id_, SIGKILL);
    auto status = 0;
    ::waitpid(id_, &status, 0);
    id_ = 0;
    status_ = status;
  }
  return status_;
}

std::string describe_end(int status) {
  return WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                             : "ended with status " + std::to_string(WEXITSTATUS(status));
}

} // namespace hicache
