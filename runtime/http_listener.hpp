#pragma once

#include "base/limits.hpp"
#include "hicache/error.hpp"
#include "runtime/http_address.hpp"

#include <httplib.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

namespace hicache {

/// What one client can take of a server.
struct http_limits {
  /// For receiving a request, and for each write of its answer.
  std::chrono::nanoseconds request_time = limits::admin_request_time;
  /// Bytes of a request, headers included.
  size_t request_bytes = limits::admin_request_bytes;
  /// Requests that are answered at once, and connections in all.
  size_t threads = limits::admin_threads;
  size_t connections = limits::admin_connections;
};

/// Whether the client behind a connection has gone; it says nothing else before its answer.
bool has_hung_up(socket_t client) noexcept;

/// An HTTP server on its own small thread pool that clients cannot block: each connection carries
/// one request, which is bounded in time and bytes, and the queue of connections is bounded. Set
/// routes as on any httplib::Server, before start().
///
/// Like every httplib::Server it makes the process ignore SIGPIPE.
class http_listener final : public httplib::Server {
public:
  explicit http_listener(const http_limits& most = {}) : limits_(most) {}

  /// Aborts requests that are still arriving and waits for those being answered.
  ~http_listener() override;

  /// Listens and answers. Port 0 picks a free one; a Unix socket is removed at the end. Call once.
  /// @returns the bound address, or invalid_argument with a sentence that names the address
  result<rpc::endpoint> start(rpc::endpoint address);

  /// In a handler or a content provider: the connection that its thread answers, to see whether the
  /// client is still there.
  static socket_t client() noexcept;

private:
  /// Binds a socket and writes the actual port to `where`.
  result<void> bind(rpc::endpoint& where);
  bool process_and_close_socket(socket_t socket) override;

  const http_limits limits_;
  std::thread thread_;
  /// Path of the Unix socket; empty for TCP.
  std::string socket_path_;
  std::mutex mutex_;
  /// Connections whose request is arriving or being answered.
  std::set<socket_t> open_;
  bool stopping_ = false;
};

} // namespace hicache
