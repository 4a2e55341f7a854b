#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

/// A forked child that talks with the test by short texts.
namespace hicache::test {

/// One end of a pair of connected sockets that keeps message boundaries. Move-only.
class pipe_end {
public:
  explicit pipe_end(int fd) : fd_(fd) {}

  pipe_end(pipe_end&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  pipe_end& operator=(pipe_end&&) = delete;

  ~pipe_end() {
    if (fd_ >= 0)
      ::close(fd_);
  }

  void send(const std::string& text) {
    static_cast<void>(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL));
  }

  /// Waits for a text; empty if the other side is gone.
  std::string receive() {
    auto text = std::string(4096, '\0');
    const auto got = ::recv(fd_, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

private:
  int fd_;
};

class child_process {
public:
  /// Forks; to be called before the test has threads, since the child gets none of them. The child
  /// runs `main` and exits with what it returns.
  template <class Main>
  static child_process start(Main main) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      std::terminate();
    const auto pid = ::fork();
    if (pid < 0)
      std::terminate();
    if (pid == 0) {
      ::close(ends[0]);
      auto parent = pipe_end{ends[1]};
      ::_exit(main(parent));
    }
    ::close(ends[1]);
    return {pid, pipe_end{ends[0]}};
  }

  child_process(child_process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pipe_(std::move(other.pipe_)) {}

  ~child_process() { kill(); }

  pid_t pid() const noexcept { return pid_; }

  void send(const std::string& text) { pipe_.send(text); }

  std::string receive() { return pipe_.receive(); }

  /// Waits for the end. @returns the exit status, or -1 after a signal
  int wait() {
    auto status = 0;
    if (pid_ > 0)
      ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  /// Freezes it until `resume`.
  void stop() {
    ::kill(pid_, SIGSTOP);
    auto status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }

  void resume() { ::kill(pid_, SIGCONT); }

  /// kill -9, and waits until it is gone.
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

private:
  child_process(pid_t pid, pipe_end pipe) : pid_(pid), pipe_(std::move(pipe)) {}

  pid_t pid_;
  pipe_end pipe_;
};

} // namespace hicache::test
