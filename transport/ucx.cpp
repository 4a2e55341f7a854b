#include "transport/ucx.hpp"

#include "base/try.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>

namespace hicache {

namespace {

/// Longer data use rendezvous: the receiver, not UCX, then provides the memory.
constexpr auto rendezvous_bytes = size_t{64} << 10;

result<void> check(const char* call, ucs_status_t status) {
  if (status == UCS_OK)
    return {};
  return fail(ec::io_failure, std::string{call} + ": " + ucs_status_string(status));
}

void note_failure(void* failure, ucp_ep_h, ucs_status_t status) {
  *static_cast<ucs_status_t*>(failure) = status;
}

/// Device names in UCX notation, comma-separated.
std::string rdma_devices() {
  auto names = std::string{};
  auto failure = std::error_code{};
  for (const auto& device : std::filesystem::directory_iterator{"/sys/class/infiniband", failure})
    for (const auto& port : std::filesystem::directory_iterator{device.path() / "ports", failure})
      names += (names.empty() ? "" : ",") + device.path().filename().string() + ":"
               + port.path().filename().string();
  return names;
}

/// Active messages with wake-up by file descriptor. UCX listens on every interface that it uses for
/// TCP, so only RDMA devices are enabled unless UCX_NET_DEVICES names others.
result<ucx_context> make_context() {
  auto* config = static_cast<ucp_config_t*>(nullptr);
  HICACHE_TRY(check("ucp_config_read", ucp_config_read(nullptr, nullptr, &config)));
  const auto guard
    = std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)>{config, ucp_config_release};
  if (std::getenv("UCX_NET_DEVICES") == nullptr)
    HICACHE_TRY(
      check("ucp_config_modify", ucp_config_modify(config, "NET_DEVICES", rdma_devices().c_str())));
  auto params = ucp_params_t{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  auto context = ucp_context_h{};
  HICACHE_TRY(check("ucp_init", ucp_init(&params, config, &context)));
  return ucx_context{context};
}

result<ucx_worker> make_worker(const ucx_context& context) {
  auto params = ucp_worker_params_t{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  auto worker = ucp_worker_h{};
  HICACHE_TRY(check("ucp_worker_create", ucp_worker_create(context.get(), &params, &worker)));
  return ucx_worker{worker};
}

std::span<const std::byte> bytes_at(const void* data, size_t length) noexcept {
  return {static_cast<const std::byte*>(data), length};
}

} // namespace

bool has_rdma_devices() {
  return !rdma_devices().empty();
}

void close_endpoint(ucp_ep_h endpoint) noexcept {
  auto params = ucp_request_param_t{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  auto* request = ucp_ep_close_nbx(endpoint, &params);
  // UCX completes the close on its own and then frees the request.
  if (UCS_PTR_IS_PTR(request))
    ucp_request_free(request);
}

void ucx_connection::send(page_parcel parcel) {
  lane_.send(shared_from_this(), std::move(parcel));
}

result<std::unique_ptr<ucx_lane>> ucx_lane::open(page_transport transport, page_message kind,
                                                 page_sink& sink) {
  const auto is_wanted = transport == page_transport::ucx;
  if (!is_wanted && (transport == page_transport::tcp || !has_rdma_devices()))
    return nullptr;
  auto lane = std::unique_ptr<ucx_lane>{new ucx_lane{kind, sink}};
  if (auto started = lane->start(); started)
    return lane;
  else if (is_wanted)
    return tl::unexpected{started.error()};
  else
    spdlog::warn("pages go by TCP, although there are RDMA devices: {}", started.error().detail);
  return nullptr;
}

result<void> ucx_lane::start() {
  context_ = HICACHE_TRY(make_context());
  worker_ = HICACHE_TRY(make_worker(context_));
  auto handler = ucp_am_handler_param_t{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB
                       | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = static_cast<unsigned>(kind_);
  handler.cb = on_message;
  handler.arg = this;
  HICACHE_TRY(check("ucp_worker_set_am_recv_handler",
                    ucp_worker_set_am_recv_handler(worker_.get(), &handler)));
  HICACHE_TRY(check("ucp_worker_get_efd", ucp_worker_get_efd(worker_.get(), &fd_)));
  auto* address = static_cast<ucp_address_t*>(nullptr);
  auto length = size_t{0};
  HICACHE_TRY(
    check("ucp_worker_get_address", ucp_worker_get_address(worker_.get(), &address, &length)));
  const auto bytes = bytes_at(address, length);
  address_.assign(bytes.begin(), bytes.end());
  ucp_worker_release_address(worker_.get(), address);
  if (address_.size() > greeting_bytes)
    return fail(ec::io_failure, "UCX has more devices here than fit a greeting");
  return {};
}

ucx_lane::~ucx_lane() {
  for (auto& each : departures_)
    each.to->close();
  if (worker_)
    drain();
  // Ends operations in flight before their memory goes.
  worker_ = nullptr;
}

std::shared_ptr<ucx_connection> ucx_lane::connect(std::span<const std::byte> address) {
  auto made = std::make_shared<ucx_connection>(*this);
  auto params = ucp_ep_params_t{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                      | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // The death of a peer fails operations in flight instead of hanging them.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = note_failure;
  params.err_handler.arg = &made->failure_;
  auto endpoint = ucp_ep_h{};
  if (ucp_ep_create(worker_.get(), &params, &endpoint) != UCS_OK)
    return nullptr;
  made->endpoint_ = ucx_endpoint{endpoint};
  return made;
}

void ucx_lane::drain() noexcept {
  while (progress()) {
  }
}

void ucx_lane::settle(time_point until) noexcept {
  while (!arrivals_.empty() && std::chrono::steady_clock::now() < until)
    if (!progress())
      std::this_thread::yield();
}

// -- sending ------------------------------------------------------------------

void ucx_lane::send(std::shared_ptr<ucx_connection> to, page_parcel parcel) {
  if (!to->is_open())
    return;
  auto& made = departures_.emplace_back();
  made.lane = this;
  made.to = std::move(to);
  made.parcel = std::move(parcel);
  made.self = std::prev(departures_.end());
  auto size = size_t{0};
  const auto add = [&](std::span<const std::byte> bytes) {
    // UCX takes a non-const pointer but only reads.
    if (!bytes.empty())
      made.parts.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});
    size += bytes.size();
  };
  add(made.parcel.front);
  for (const auto& piece : made.parcel.pieces)
    add(piece);
  auto params = ucp_request_param_t{};
  params.op_attr_mask
    = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.cb.send = on_sent;
  params.user_data = &made;
  params.flags = size > rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  const void* data = nullptr;
  auto count = size_t{0};
  if (made.parts.size() == 1) {
    data = made.parts[0].buffer;
    count = size;
  } else if (!made.parts.empty()) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = ucp_dt_make_iov();
    data = made.parts.data();
    count = made.parts.size();
  }
  ++made.to->unsent_;
  const auto status
    = ucp_am_send_nbx(made.to->endpoint_.get(), static_cast<unsigned>(made.parcel.kind),
                      made.parcel.header.data(), made.parcel.header.size(), data, count, &params);
  if (UCS_PTR_IS_ERR(status))
    made.to->failure_ = UCS_PTR_STATUS(status);
  // Anything but a pointer means that UCX is done with the message, successfully or not.
  if (!UCS_PTR_IS_PTR(status))
    end(made);
}

void ucx_lane::on_sent(void* request, ucs_status_t, void* sent) {
  auto& which = *static_cast<departure*>(sent);
  which.lane->end(which);
  ucp_request_free(request);
}

void ucx_lane::end(departure& which) noexcept {
  --which.to->unsent_;
  departures_.erase(which.self);
}

// -- receiving ----------------------------------------------------------------

ucs_status_t ucx_lane::on_message(void* lane, const void* header, size_t header_length, void* data,
                                  size_t length, const ucp_am_recv_param_t* param) {
  auto* self = static_cast<ucx_lane*>(lane);
  const auto head = bytes_at(header, header_length);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
    return self->fetch(head, data, length);
  const auto to
    = length > 0 ? self->sink_.place_for(self->kind_, head, length) : std::span<std::byte>{};
  if (to.size() != length)
    return UCS_OK;
  std::ranges::copy(bytes_at(data, length), to.begin());
  self->sink_.take(self->kind_, head, to);
  return UCS_OK;
}

ucs_status_t ucx_lane::fetch(std::span<const std::byte> header, void* descriptor, size_t length) {
  const auto to = sink_.place_for(kind_, header, length);
  if (to.size() != length)
    return UCS_OK;
  auto& made = arrivals_.emplace_back();
  made.lane = this;
  made.header.assign(header.begin(), header.end());
  made.data = to;
  made.self = std::prev(arrivals_.end());
  auto params = ucp_request_param_t{};
  params.op_attr_mask
    = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = on_fetched;
  params.user_data = &made;
  const auto status = ucp_am_recv_data_nbx(worker_.get(), descriptor, to.data(), length, &params);
  if (UCS_PTR_IS_ERR(status))
    arrivals_.erase(made.self);
  return UCS_INPROGRESS;
}

void ucx_lane::on_fetched(void* request, ucs_status_t status, size_t, void* fetched) {
  auto& which = *static_cast<arrival*>(fetched);
  auto* lane = which.lane;
  const auto ended = std::move(which);
  lane->arrivals_.erase(ended.self);
  ucp_request_free(request);
  if (status == UCS_OK)
    lane->sink_.take(lane->kind_, ended.header, ended.data);
}

} // namespace hicache
