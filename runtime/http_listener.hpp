#pragma once

#include "hicache/error.hpp"
#include "runtime/http_address.hpp"

#include <httplib.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

namespace hicache {

/// An HTTP server on its own small thread pool that clients cannot block: each connection carries
/// one request, which is bounded in time and by limits::admin_request_bytes, and the queue of
/// connections is bounded. Set routes as on any httplib::Server, before start().
///
/// Like every httplib::Server it makes the process ignore SIGPIPE.
class http_listener final : public httplib::Server {
public:
  /// @param request_time Time limit for receiving a request, and for each write of its answer.
  explicit http_listener(std::chrono::nanoseconds request_time) : request_time_(request_time) {}

  /// Aborts requests that are still arriving and waits for those being answered.
  ~http_listener() override;

  /// Listens and answers. Port 0 picks a free one; a Unix socket is removed at the end. Call once.
  /// @returns the bound address, or invalid_argument with a sentence that names the address
  result<http_address> start(http_address address);

private:
  /// Binds a socket and writes the actual port to `address`.
  result<void> bind(http_address& address);
  bool process_and_close_socket(socket_t socket) override;

  const std::chrono::nanoseconds request_time_;
  std::thread thread_;
  /// Path of the Unix socket; empty for TCP.
  std::string socket_path_;
  std::mutex mutex_;
  /// Connections whose request is arriving or being answered.
  std::set<socket_t> open_;
  bool stopping_ = false;
};

} // namespace hicache
