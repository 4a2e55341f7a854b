#pragma once

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

extern char** environ;

namespace hicache::test {

/// A hicache-node as people run it, in a process of its own; killed at the end.
class node_process {
public:
  explicit node_process(std::string socket, std::string memory = "16MiB")
    : socket_(std::move(socket)), memory_(std::move(memory)) {
    start();
  }

  node_process(const node_process&) = delete;

  node_process& operator=(const node_process&) = delete;

  ~node_process() { kill(); }

  /// Returns when it serves.
  void start() {
    auto ends = std::array{-1, -1};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    auto actions = posix_spawn_file_actions_t{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const auto* other = std::getenv("HICACHE_NODE");
    const auto program = std::string{other != nullptr ? other : HICACHE_NODE};
    auto arguments = std::array<std::string, 7>{program, "--memory",    memory_, "--socket",
                                                socket_, "--log-level", "error"};
    auto pointers = std::array<char*, 8>{};
    for (auto i = size_t{0}; i < arguments.size(); ++i)
      pointers[i] = arguments[i].data();
    const auto failed
      = posix_spawn(&process_, program.c_str(), &actions, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    auto line = std::string{};
    for (auto byte = char{}; !failed && ::read(ends[0], &byte, 1) == 1 && byte != '\n';)
      line += byte;
    ::close(ends[0]);
    ASSERT_EQ(failed, 0);
    ASSERT_EQ(line, "listening on unix:" + socket_);
  }

  void kill() {
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
      process_ = -1;
    }
  }

  /// It hangs until resume().
  void suspend() {
    ::kill(process_, SIGSTOP);
    auto status = 0;
    ::waitpid(process_, &status, WUNTRACED);
    ASSERT_TRUE(WIFSTOPPED(status));
  }

  void resume() { ::kill(process_, SIGCONT); }

private:
  std::string socket_;
  std::string memory_;
  pid_t process_ = -1;
};

/// A folder for a socket; gone at the end.
class socket_folder {
public:
  socket_folder() {
    path_ = ::testing::TempDir() + "hicache-c-XXXXXX";
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }

  socket_folder(const socket_folder&) = delete;

  socket_folder& operator=(const socket_folder&) = delete;

  ~socket_folder() { std::filesystem::remove_all(path_); }

  std::string socket() const { return path_ + "/node"; }

private:
  std::string path_;
};

} // namespace hicache::test
