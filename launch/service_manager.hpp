#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "rpc/network.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// What started this process, if that is systemd or speaks as systemd does: the protocols of
/// sd_listen_fds(3), sd_notify(3) and sd_watchdog_enabled(3). A process that nobody manages is
/// given nothing, and what it tells goes nowhere. Any thread.
class service_manager {
public:
  /// Reads the environment.
  service_manager();

  /// The socket that the manager has opened for this process; null if there is none. Once: the
  /// descriptor is taken over.
  /// @returns invalid_argument unless it is one stream socket that listens at a path
  result<std::shared_ptr<listener>> take_listener() const;

  /// After how long without alive() the process is taken for dead; nothing if nobody watches.
  std::optional<duration> patience() const noexcept { return patience_; }

  /// @param status One line for people.
  void ready(const std::string& status) const { tell("READY=1\nSTATUS=" + status); }

  void alive() const { tell("WATCHDOG=1"); }

  void stopping() const { tell("STOPPING=1"); }

private:
  void tell(const std::string& news) const;

  /// Where news go; empty if nobody listens.
  std::string notify_path_;
  uint64_t descriptors_ = 0;
  std::optional<duration> patience_;
};

} // namespace hicache
