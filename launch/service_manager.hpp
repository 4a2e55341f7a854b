#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "rpc/network.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Interface to systemd or a compatible manager: sd_listen_fds(3), sd_notify(3) and
/// sd_watchdog_enabled(3). Without one there is no socket and notifications are dropped. Any
/// thread.
class service_manager {
public:
  /// Reads the environment.
  service_manager();

  /// Takes over the socket opened by the manager; null if there is none. Call once.
  /// @returns invalid_argument unless it is one stream socket that listens at a path
  result<std::shared_ptr<listener>> take_listener() const;

  /// Watchdog timeout: the longest interval between calls of alive(); nothing without a watchdog.
  std::optional<duration> patience() const noexcept { return patience_; }

  /// @param status One line of text.
  void ready(const std::string& status) const { tell("READY=1\nSTATUS=" + status); }

  void alive() const { tell("WATCHDOG=1"); }

  void stopping() const { tell("STOPPING=1"); }

private:
  void tell(const std::string& news) const;

  /// Address for notifications; empty if there is none.
  std::string notify_path_;
  uint64_t descriptors_ = 0;
  std::optional<duration> patience_;
};

} // namespace hicache
