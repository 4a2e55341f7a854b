#pragma once

#include "base/shell_process.hpp"
#include "base/socket_address.hpp"
#include "base/unique_fd.hpp"
#include "hicache/error.hpp"

#include <chrono>
#include <optional>
#include <string>

namespace hicache {

/// @returns invalid_argument if a socket cannot have such a path
result<socket_address> unix_address_of(const std::string& path);

/// Connects to a socket of type SOCK_STREAM; the result does not block. Its owner must be this
/// process's user, or root.
/// @returns peer_unreachable
result<unique_fd> connect_to(const socket_address& address);

/// A store's process that this one has started (docs/backends.md, "external"). It finds the
/// listening socket as descriptor 3. Its standard input ends when this object is destroyed, or with
/// this process; its output goes to the standard error of this process. One thread.
class store_process {
public:
  /// @returns io_failure
  static result<store_process> start(const std::string& command);

  store_process(store_process&&) = default;
  store_process& operator=(store_process&&) = default;

  /// Ends it, by force if it takes longer than a few seconds.
  ~store_process();

  /// Where it listens; connections wait until it accepts them.
  const socket_address& address() const noexcept { return address_; }

  /// How it ended, for a sentence; nothing if it does not within this time.
  std::optional<std::string> end(std::chrono::milliseconds time);

private:
  store_process(shell_process shell, unique_fd input, const socket_address& address)
    : shell_(std::move(shell)), input_(std::move(input)), address_(address) {}

  shell_process shell_;
  /// Writing end of its standard input.
  unique_fd input_;
  socket_address address_;
};

} // namespace hicache
