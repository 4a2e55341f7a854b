#pragma once

#include "base/error.hpp"

#include <ucp/api/ucp.h>

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

/// Owners of UCX's C handles. Internal to transport/: no public header includes this one.
namespace hicache {

/// A C handle and what releases it. Move-only.
template <class Handle, void (*Release)(Handle)>
class ucx_handle {
public:
  ucx_handle() = default;

  explicit ucx_handle(Handle handle) noexcept : handle_(handle) {}

  ucx_handle(ucx_handle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

  ucx_handle& operator=(ucx_handle&& other) noexcept {
    auto old = ucx_handle{std::exchange(handle_, std::exchange(other.handle_, nullptr))};
    return *this;
  }

  ~ucx_handle() {
    if (handle_ != nullptr)
      Release(handle_);
  }

  Handle get() const noexcept { return handle_; }

private:
  Handle handle_ = nullptr;
};

/// Closes an endpoint at once, without waiting for the peer. Operations in flight are cancelled:
/// their callbacks come from later calls of progress.
void close_endpoint(ucp_ep_h endpoint) noexcept;

using ucx_context = ucx_handle<ucp_context_h, ucp_cleanup>;
using ucx_worker = ucx_handle<ucp_worker_h, ucp_worker_destroy>;
using ucx_listener = ucx_handle<ucp_listener_h, ucp_listener_destroy>;
using ucx_endpoint = ucx_handle<ucp_ep_h, close_endpoint>;

/// Names of network interfaces, as "eth0".
using interface_names = std::set<std::string>;

/// The interfaces of this machine that have the address; all of them if none has, as with that
/// which stands for any.
interface_names interfaces_with(const sockaddr_storage& address);

/// The interfaces by which packets to the address leave.
interface_names interfaces_towards(const sockaddr_storage& to);

/// Active messages with wake-up by file descriptor. UCX listens on each interface that it uses for
/// TCP, so it is given no others; UCX_NET_DEVICES in the environment decides instead. Devices that
/// are no interfaces, as those for RDMA, are always used.
result<ucx_context> make_ucx_context(const interface_names& interfaces);

/// A worker that one thread at a time may use.
result<ucx_worker> make_ucx_worker(const ucx_context& context);

/// Calls `on_message` from progress for each active message with number `id`.
result<void> receive_messages(const ucx_worker& worker, unsigned id,
                              ucp_am_recv_callback_t on_message, void* argument);

/// Does what is there to do, without waiting for more: lets closed endpoints come to their end. To
/// be called soon after closing some: UCX before 1.18 ends the process if an event that it has
/// still to look at belongs to a file descriptor which another worker was given since
/// (github.com/openucx/ucx/pull/9942).
void drain(const ucx_worker& worker) noexcept;

/// Sleeps until the worker has something to do, `other` (unless -1) is readable, or the time is up.
/// @returns true if `other` is readable
bool wait_for_events(const ucx_worker& worker, int other, std::chrono::milliseconds timeout);

/// An endpoint and whether UCX gave it up. Stays where it is, since UCX knows its address.
struct ucx_connection {
  ucx_connection() = default;

  ucx_connection(const ucx_connection&) = delete;

  ucx_connection& operator=(const ucx_connection&) = delete;

  /// Set by progress when the peer is gone.
  ucs_status_t failure = UCS_OK;
  ucx_endpoint endpoint;
};

/// Connects `connection` to a listener. Failure to reach it shows in `connection.failure`, later.
result<void> connect(const ucx_worker& worker, const sockaddr_storage& to,
                     ucx_connection& connection);

/// Accepts what a listener was asked for into `connection`.
result<void> accept(const ucx_worker& worker, ucp_conn_request_h request,
                    ucx_connection& connection);

/// Resolves "host" and "port".
/// @param flags getaddrinfo's; AI_NUMERICHOST keeps it from asking a name server.
std::optional<sockaddr_storage> resolve(const std::string& host, const std::string& port,
                                        int flags);

/// Splits "host:port" or "[host]:port".
std::optional<std::pair<std::string, std::string>> split_address(const std::string& address);

/// "1.2.3.4:5" or "[::1]:5".
std::string format_address(const sockaddr_storage& address);

/// Bytes of a socket address of its family.
socklen_t address_length(const sockaddr_storage& address) noexcept;

} // namespace hicache
