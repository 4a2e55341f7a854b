#pragma once

#include "hicache/error.hpp"

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace hicache {

/// A shell command in a process group of its own, which is killed with this object unless it has
/// ended. Move-only; one thread.
class shell_process {
public:
  /// Descriptors of this process, and what they are in the child, 0 to 9. It has no others but
  /// those that are not close-on-exec. None of ours may be one of the child's that stands before
  /// it.
  using descriptors = std::span<const std::pair<int, int>>;

  /// Starts `/bin/sh -c command` without blocked signals. Its standard input is empty unless
  /// `given` says otherwise.
  /// @returns io_failure
  static result<shell_process> start(const std::string& command, descriptors given);

  shell_process(shell_process&& other) noexcept
    : id_(std::exchange(other.id_, 0)), status_(other.status_) {}

  shell_process& operator=(shell_process&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(status_, other.status_);
    return *this;
  }

  ~shell_process();

  /// @returns its status, as of waitpid; nothing if it has not ended within this time
  std::optional<int> await(std::chrono::milliseconds time);

private:
  explicit shell_process(pid_t id) noexcept : id_(id) {}

  /// 0 once it has ended.
  pid_t id_;
  std::optional<int> status_;
};

/// What a status of waitpid means, for a sentence: "ended with status 3".
std::string describe_end(int status);

} // namespace hicache
