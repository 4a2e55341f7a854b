#pragma once

#include "base/unique_fd.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace hicache::test {

/// A port that was free a moment ago.
inline uint16_t free_port() {
  const auto probe = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto address = sockaddr_in{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto size = socklen_t{sizeof(address)};
  EXPECT_EQ(::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

/// A server in a process of its own; killed at the end, or with the test.
class server_process {
public:
  server_process() = default;
  server_process(const server_process&) = delete;
  server_process& operator=(const server_process&) = delete;

  ~server_process() { kill(); }

  /// Returns when the server has printed a text.
  /// @returns false if it ends before; then nothing runs
  bool start(const std::vector<std::string>& command, std::string_view ready) {
    auto words = std::vector<std::string>{"setpriv", "--pdeathsig", "KILL"};
    words.insert(words.end(), command.begin(), command.end());
    auto pointers = std::vector<char*>{};
    for (auto& word : words)
      pointers.push_back(word.data());
    pointers.push_back(nullptr);
    auto ends = std::array{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      return false;
    auto output = unique_fd{ends[0]};
    auto actions = posix_spawn_file_actions_t{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    const auto failed
      = posix_spawnp(&process_, "setpriv", &actions, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0)
      return false;
    auto text = std::string{};
    for (auto byte = char{}; ::read(output.get(), &byte, 1) == 1;) {
      text += byte;
      if (!text.ends_with(ready))
        continue;
      reader_ = std::thread{[rest = std::move(output)] {
        for (auto bytes = std::array<char, 4096>{};
             ::read(rest.get(), bytes.data(), bytes.size()) > 0;)
          ;
      }};
      return true;
    }
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
    return false;
  }

  bool is_running() const noexcept { return process_ >= 0; }

  void kill() {
    if (!is_running())
      return;
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
    reader_.join();
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
  pid_t process_ = -1;
  /// Reads what the server goes on to print, so that it does not wait for that.
  std::thread reader_;
};

} // namespace hicache::test
