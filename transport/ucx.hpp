#pragma once

#include "base/immovable.hpp"
#include "base/limits.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_link.hpp"

#include <ucp/api/ucp.h>

#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

/// UCX, for page transfers by RDMA. Internal to transport/: no public header includes this one.
namespace hicache {

template <class Handle, void (*Release)(Handle)>
struct ucx_release {
  void operator()(Handle handle) const noexcept { Release(handle); }
};

/// Owns a C handle.
template <class Handle, void (*Release)(Handle)>
using ucx_handle = std::unique_ptr<std::remove_pointer_t<Handle>, ucx_release<Handle, Release>>;

/// Closes an endpoint at once, without waiting for the peer. Cancels operations in flight: their
/// callbacks run in later calls of progress.
void close_endpoint(ucp_ep_h endpoint) noexcept;

using ucx_context = ucx_handle<ucp_context_h, ucp_cleanup>;
using ucx_worker = ucx_handle<ucp_worker_h, ucp_worker_destroy>;
using ucx_endpoint = ucx_handle<ucp_ep_h, close_endpoint>;

bool has_rdma_devices();

class ucx_lane;

/// A connection to a peer whose UCX address is known. Stays alive while messages are in flight.
class ucx_connection final : public page_carrier,
                             public std::enable_shared_from_this<ucx_connection>,
                             immovable {
public:
  explicit ucx_connection(ucx_lane& lane) : lane_(lane) {}

  void send(page_parcel parcel) override;

  bool has_room() const noexcept override { return unsent_ < limits::transfers_in_flight; }

  bool is_open() const noexcept override { return failure_ == UCS_OK && endpoint_ != nullptr; }

  /// Must be called before the last reference goes.
  void close() noexcept { endpoint_ = nullptr; }

private:
  friend class ucx_lane;

  ucx_lane& lane_;
  ucx_endpoint endpoint_;
  /// Set by progress when the peer is gone.
  ucs_status_t failure_ = UCS_OK;
  size_t unsent_ = 0;
};

/// Messages over UCX active messages, between processes that exchanged their addresses over a
/// page_link: UCX itself does not listen. It trusts what it receives, so it uses RDMA devices only,
/// which accept packets from connected peers alone. One thread at a time.
class ucx_lane : immovable {
public:
  /// @param sink Receives the messages of this kind. Must outlive the lane.
  /// @returns null if pages go by TCP only, also if UCX does not start and is optional; io_failure
  /// if UCX is required and does not start
  static result<std::unique_ptr<ucx_lane>> open(page_transport transport, page_message kind,
                                                page_sink& sink);

  ~ucx_lane();

  /// Sent in the greeting to a peer.
  std::span<const std::byte> address() const noexcept { return address_; }

  /// @returns null if UCX finds no route to this address
  std::shared_ptr<ucx_connection> connect(std::span<const std::byte> address);

  /// Processes pending events.
  /// @returns whether there were any
  bool progress() noexcept { return ucp_worker_progress(worker_.get()) != 0; }

  /// Processes pending events without waiting for more, so that closed connections finish. Call it
  /// soon after closing some: UCX before 1.18 aborts if a pending event belongs to a file
  /// descriptor that another worker has reused since (github.com/openucx/ucx/pull/9942).
  void drain() noexcept;

  /// Waits until nothing is being received into the sink, at most until `until`. UCX ends the
  /// receives of closed connections, also while it destroys their lanes; neither needs the peer.
  void settle(time_point until = time_point::max()) noexcept;

  /// Makes fd() readable when events are pending.
  /// @returns false if some are pending already
  bool arm() noexcept { return ucp_worker_arm(worker_.get()) == UCS_OK; }

  int fd() const noexcept { return fd_; }

private:
  friend class ucx_connection;

  /// A message that UCX may still read; its address is stable.
  struct departure {
    ucx_lane* lane = nullptr;
    std::shared_ptr<ucx_connection> to;
    page_parcel parcel;
    std::vector<ucp_dt_iov_t> parts;
    std::list<departure>::iterator self;
  };

  /// A message whose data UCX is fetching.
  struct arrival {
    ucx_lane* lane = nullptr;
    std::vector<std::byte> header;
    std::span<std::byte> data;
    std::list<arrival>::iterator self;
  };

  ucx_lane(page_message kind, page_sink& sink) : kind_(kind), sink_(sink) {}

  result<void> start();

  void send(std::shared_ptr<ucx_connection> to, page_parcel parcel);

  static ucs_status_t on_message(void* lane, const void* header, size_t header_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* param);

  static void on_sent(void* request, ucs_status_t status, void* sent);

  static void on_fetched(void* request, ucs_status_t status, size_t length, void* fetched);

  ucs_status_t fetch(std::span<const std::byte> header, void* descriptor, size_t length);

  void end(departure& which) noexcept;

  const page_message kind_;
  page_sink& sink_;
  ucx_context context_;
  ucx_worker worker_;
  int fd_ = -1;
  std::vector<std::byte> address_;
  std::list<departure> departures_;
  std::list<arrival> arrivals_;
};

} // namespace hicache
