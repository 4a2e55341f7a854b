#pragma once

#include "hicache/error.hpp"
#include "runtime/http_address.hpp"

#include <httplib.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

namespace hicache {

/// An HTTP server on a few threads of its own that no client can occupy: every connection carries
/// one request, which has to arrive in time and within limits::admin_request_bytes, and the
/// connections that wait are bounded. Routes are set as on any httplib::Server, before start().
///
/// Like every httplib::Server it makes the process ignore SIGPIPE.
class http_listener final : public httplib::Server {
public:
  /// @param request_time How long a request may take to arrive, and its answer to leave.
  explicit http_listener(std::chrono::nanoseconds request_time) : request_time_(request_time) {}

  /// Ends requests that are still arriving, and waits for those that are being answered.
  ~http_listener() override;

  /// Listens, and answers from now on. Port 0 picks a free one; a Unix socket is removed at the
  /// end. Once.
  /// @returns the address that was chosen, or invalid_argument with a sentence that names the one
  /// that cannot be listened on.
  result<http_address> start(http_address address);

private:
  /// Binds a socket to the address, and sets the port that was chosen.
  result<void> bind(http_address& address);
  bool process_and_close_socket(socket_t socket) override;

  const std::chrono::nanoseconds request_time_;
  std::thread thread_;
  /// Of the Unix socket, if there is one.
  std::string socket_path_;
  std::mutex mutex_;
  /// Connections whose request is arriving or being answered.
  std::set<socket_t> open_;
  bool stopping_ = false;
};

} // namespace hicache
