#include "backends/external/store_link.hpp"

#include "base/check.hpp"
#include "base/rest_of.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hicache {

namespace {

static_assert(std::endian::native == std::endian::little);

/// An address and a length for sendmsg.
iovec part_at(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

} // namespace

result<std::unique_ptr<store_link>> store_link::open(unique_fd socket, uint64_t window_bytes,
                                                     const std::string& options,
                                                     milliseconds time) {
  const auto deadline = steady::now() + time;
  auto window
    = HICACHE_TRY(shared_memory::create(window_bytes, "hicache-store", peer_access::write));
  auto link = std::unique_ptr<store_link>{new store_link{std::move(socket), std::move(window)}};
  const auto hello = store_hello{store_protocol_version, window_bytes, options};
  const auto reply
    = HICACHE_TRY(link->send(wire::codec<store_hello>::encode(hello), link->window_.fd(), deadline)
                    .and_then([&] { return link->receive(deadline); })
                    .and_then([](const wire::frame& message) {
                      return wire::codec<store_welcome>::decode(message);
                    }));
  if (!reply.error.empty())
    return fail(ec::invalid_argument, reply.error);
  link->welcome_ = reply;
  return link;
}

result<store_answer> store_link::call(store_request request, milliseconds time) {
  HICACHE_CHECK(!is_broken_ && request.objects.size() <= store_request_objects);
  const auto deadline = steady::now() + time;
  request.number = ++calls_;
  request.milliseconds = static_cast<uint32_t>(time.count());
  const auto message = wire::codec<store_request>::encode(request);
  is_broken_ = true;
  auto answer = send(message, -1, deadline)
                  .and_then([&] { return receive(deadline); })
                  .and_then([](const wire::frame& reply) {
                    return wire::codec<store_answer>::decode(reply);
                  });
  if (!answer)
    return answer;
  if (answer->number != calls_)
    return fail(ec::malformed_message, "the answer of another call");
  if (answer->error.empty() && answer->objects.size() != request.objects.size())
    return fail(ec::malformed_message, "an answer with another number of objects");
  is_broken_ = false;
  if (!answer->error.empty())
    return fail(ec::io_failure, answer->error);
  return answer;
}

template <class Transfer>
result<size_t> store_link::transfer_some(short event, steady::time_point deadline,
                                         Transfer transfer) {
  for (;;) {
    const auto count = transfer();
    if (count > 0)
      return static_cast<size_t>(count);
    if (count == 0)
      return fail(ec::peer_unreachable, "the store's process hung up");
    if (errno != EAGAIN && errno != EINTR)
      return fail(ec::peer_unreachable, system_message(errno));
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady::now()).count();
    auto waiting = pollfd{socket_.get(), event, 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) == 0)
      return fail(ec::deadline_exceeded, "the store's process did not answer in time");
  }
}

result<void> store_link::send(const wire::frame& message, int memory, steady::time_point deadline) {
  const auto body = std::as_bytes(std::span{message});
  const auto length = static_cast<uint32_t>(body.size());
  auto parts = std::array{part_at(std::as_bytes(std::span{&length, 1})), part_at(body)};
  alignas(cmsghdr) auto control = std::array<char, CMSG_SPACE(sizeof(int))>{};
  auto header = msghdr{};
  if (memory >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    auto* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &memory, sizeof(int));
  }
  for (auto left = rest_of(parts, 0); !left.empty();) {
    header.msg_iov = left.data();
    header.msg_iovlen = left.size();
    const auto sent = HICACHE_TRY(transfer_some(
      POLLOUT, deadline, [&] { return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL); }));
    header.msg_controllen = 0; // It went with the first byte.
    left = rest_of(left, sent);
  }
  return {};
}

result<wire::frame> store_link::receive(steady::time_point deadline) {
  const auto fill = [&](std::span<std::byte> target) -> result<void> {
    while (!target.empty()) {
      const auto count = HICACHE_TRY(transfer_some(
        POLLIN, deadline, [&] { return ::recv(socket_.get(), target.data(), target.size(), 0); }));
      target = target.subspan(count);
    }
    return {};
  };
  auto length = uint32_t{0};
  HICACHE_TRY(fill(std::as_writable_bytes(std::span{&length, 1})));
  if (length % sizeof(uint64_t) != 0 || length > store_message_bytes)
    return fail(ec::malformed_message, "a message of " + std::to_string(length) + " bytes");
  auto message = wire::frame(length / sizeof(uint64_t));
  HICACHE_TRY(fill(std::as_writable_bytes(std::span{message})));
  return message;
}

} // namespace hicache
