#include "transport/ucx.hpp"

#include "base/unique_fd.hpp"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace hicache {

namespace {

tl::unexpected<error> ucx_error(const char* call, ucs_status_t status) {
  return fail(ec::io_failure, std::string{call} + ": " + ucs_status_string(status));
}

void note_failure(void* argument, ucp_ep_h, ucs_status_t status) {
  static_cast<ucx_connection*>(argument)->failure = status;
}

/// With peer-failure handling: a peer that dies fails what is in flight to it, rather than hang it.
result<void> make_endpoint(const ucx_worker& worker, ucp_ep_params_t params,
                           ucx_connection& connection) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = note_failure;
  params.err_handler.arg = &connection;
  auto endpoint = ucp_ep_h{};
  if (auto status = ucp_ep_create(worker.get(), &params, &endpoint); status != UCS_OK)
    return ucx_error("ucp_ep_create", status);
  connection.endpoint = ucx_endpoint{endpoint};
  return {};
}

bool is_same_host(const sockaddr* a, const sockaddr_storage& b) {
  if (a == nullptr || a->sa_family != b.ss_family)
    return false;
  if (b.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr
           == reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  return b.ss_family == AF_INET6
         && std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                        &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr))
              == 0;
}

/// Of this machine: those with the address, or all.
interface_names list_interfaces(const sockaddr_storage* address) {
  auto* list = static_cast<ifaddrs*>(nullptr);
  if (::getifaddrs(&list) != 0)
    return {};
  const auto guard = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>{list, ::freeifaddrs};
  auto names = interface_names{};
  for (const auto* each = list; each != nullptr; each = each->ifa_next)
    if (address == nullptr || is_same_host(each->ifa_addr, *address))
      names.emplace(each->ifa_name);
  return names;
}

/// As UCX names them, with commas between: it understands no list of what it is not to use.
std::string rdma_devices() {
  auto names = std::string{};
  auto failure = std::error_code{};
  for (const auto& device : std::filesystem::directory_iterator{"/sys/class/infiniband", failure})
    for (const auto& port : std::filesystem::directory_iterator{device.path() / "ports", failure})
      names += (names.empty() ? "" : ",") + device.path().filename().string() + ":"
               + port.path().filename().string();
  return names;
}

} // namespace

interface_names interfaces_with(const sockaddr_storage& address) {
  auto found = list_interfaces(&address);
  return found.empty() ? list_interfaces(nullptr) : found;
}

interface_names interfaces_towards(const sockaddr_storage& to) {
  // Connecting a datagram socket sends nothing; it asks the routing table.
  const auto probe = unique_fd{::socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  auto from = sockaddr_storage{};
  auto length = socklen_t{sizeof(from)};
  if (!probe
      || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&to), address_length(to)) != 0
      || ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&from), &length) != 0)
    return {};
  return interfaces_with(from);
}

void close_endpoint(ucp_ep_h endpoint) noexcept {
  auto params = ucp_request_param_t{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  auto* request = ucp_ep_close_nbx(endpoint, &params);
  // Nobody waits for the end: UCX finishes on its own and then forgets the request.
  if (UCS_PTR_IS_PTR(request))
    ucp_request_free(request);
}

result<ucx_context> make_ucx_context(const interface_names& interfaces) {
  auto* config = static_cast<ucp_config_t*>(nullptr);
  if (auto status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return ucx_error("ucp_config_read", status);
  auto devices = rdma_devices();
  for (const auto& name : interfaces)
    devices += (devices.empty() ? "" : ",") + name;
  if (interfaces != list_interfaces(nullptr) && std::getenv("UCX_NET_DEVICES") == nullptr)
    if (auto status = ucp_config_modify(config, "NET_DEVICES", devices.c_str()); status != UCS_OK) {
      ucp_config_release(config);
      return ucx_error("ucp_config_modify", status);
    }
  auto params = ucp_params_t{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  auto context = ucp_context_h{};
  const auto status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK)
    return ucx_error("ucp_init", status);
  return ucx_context{context};
}

result<ucx_worker> make_ucx_worker(const ucx_context& context) {
  auto params = ucp_worker_params_t{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  auto worker = ucp_worker_h{};
  if (auto status = ucp_worker_create(context.get(), &params, &worker); status != UCS_OK)
    return ucx_error("ucp_worker_create", status);
  return ucx_worker{worker};
}

result<void> receive_messages(const ucx_worker& worker, unsigned id,
                              ucp_am_recv_callback_t on_message, void* argument) {
  auto params = ucp_am_handler_param_t{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB
                      | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.cb = on_message;
  params.arg = argument;
  if (auto status = ucp_worker_set_am_recv_handler(worker.get(), &params); status != UCS_OK)
    return ucx_error("ucp_worker_set_am_recv_handler", status);
  return {};
}

void drain(const ucx_worker& worker) noexcept {
  while (ucp_worker_progress(worker.get()) != 0) {
  }
}

bool wait_for_events(const ucx_worker& worker, int other, std::chrono::milliseconds timeout) {
  auto worker_fd = -1;
  if (ucp_worker_get_efd(worker.get(), &worker_fd) != UCS_OK)
    return false;
  // Arming fails while there is something to progress, which is then the caller's to do first.
  if (ucp_worker_arm(worker.get()) != UCS_OK)
    timeout = {};
  auto events = std::array<pollfd, 2>{{{worker_fd, POLLIN, 0}, {other, POLLIN, 0}}};
  static_cast<void>(::poll(events.data(), events.size(), static_cast<int>(timeout.count())));
  return events[1].revents != 0;
}

result<void> connect(const ucx_worker& worker, const sockaddr_storage& to,
                     ucx_connection& connection) {
  auto params = ucp_ep_params_t{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
  params.sockaddr.addrlen = address_length(to);
  return make_endpoint(worker, params, connection);
}

result<void> accept(const ucx_worker& worker, ucp_conn_request_h request,
                    ucx_connection& connection) {
  auto params = ucp_ep_params_t{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  return make_endpoint(worker, params, connection);
}

std::optional<sockaddr_storage> resolve(const std::string& host, const std::string& port,
                                        int flags) {
  auto hints = addrinfo{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  auto* found = static_cast<addrinfo*>(nullptr);
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return std::nullopt;
  auto address = sockaddr_storage{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

std::optional<std::pair<std::string, std::string>> split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size())
    return std::nullopt;
  auto host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::pair{host, address.substr(colon + 1)};
}

std::string format_address(const sockaddr_storage& address) {
  auto host = std::array<char, NI_MAXHOST>{};
  auto port = std::array<char, NI_MAXSERV>{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), address_length(address),
                    host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV)
      != 0)
    return {};
  const auto text = std::string{host.data()};
  return (address.ss_family == AF_INET6 ? "[" + text + "]" : text) + ":" + port.data();
}

socklen_t address_length(const sockaddr_storage& address) noexcept {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

} // namespace hicache
