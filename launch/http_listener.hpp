#pragma once

#include "backends/index_link.hpp"
#include "base/error.hpp"

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

  /// Listens, and answers from now on. Port 0 picks a free one. Once.
  /// @returns the address that was chosen, or invalid_argument with a sentence that names the one
  /// that cannot be listened on.
  result<endpoint> start(endpoint where);

private:
  bool process_and_close_socket(socket_t socket) override;

  const std::chrono::nanoseconds request_time_;
  std::thread thread_;
  std::mutex mutex_;
  /// Connections whose request is arriving or being answered.
  std::set<socket_t> open_;
  bool stopping_ = false;
};

} // namespace hicache
