#include "transport/memory_sharing.hpp"

#include "base/limits.hpp"
#include "base/socket_peer.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"

#include <absl/strings/escaping.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// Sent along with the descriptor. Both sides are on one host, so byte order does not matter.
struct greeting {
  uint64_t magic = 0x68696361'6368656dULL;
  uint64_t size = 0;
  /// The owner keeps the connection open. Older versions do not, and omit this field.
  uint64_t stays = 1;
};

constexpr auto old_greeting_bytes = offsetof(greeting, stays);

/// Connections the kernel queues while the owner's thread is busy.
constexpr auto backlog = 64;

/// Pause of the owner while the process is out of descriptors.
constexpr auto exhausted_ms = 100;

std::string failure_of(const char* call) {
  return std::string{call} + ": " + system_message(errno);
}

struct socket_address {
  sockaddr_un address = {};
  socklen_t length = 0;
};

/// The abstract-namespace address of a name; empty if the name does not fit.
std::optional<socket_address> abstract_address(const std::string& name) {
  auto x = socket_address{};
  if (name.empty() || name.size() + 1 > sizeof(x.address.sun_path))
    return std::nullopt;
  x.address.sun_family = AF_UNIX;
  // The leading zero byte makes the name abstract: no file, no cleanup.
  std::copy(name.begin(), name.end(), x.address.sun_path + 1);
  x.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return x;
}

result<std::string> random_name() {
  auto bytes = std::array<char, 16>{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return fail(ec::io_failure, failure_of("getrandom"));
  return "hicache-" + absl::BytesToHexString({bytes.data(), bytes.size()});
}

/// A descriptor of the memory that permits this access.
unique_fd descriptor_for(const shared_memory& memory, peer_access access) {
  if (access == peer_access::read) {
    // Reopening yields a read-only descriptor even where the memory is not sealed against writing.
    const auto path = "/proc/self/fd/" + std::to_string(memory.fd());
    if (auto reading = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)})
      return reading;
  }
  return unique_fd{::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)};
}

/// A greeting with room for a descriptor. The header refers to the other members.
struct greeting_message {
  greeting_message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  greeting said;
  iovec part{&said, sizeof(said)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

/// Queues the greeting and the descriptor.
bool hand_over(const unique_fd& connection, int memory, uint64_t size) {
  auto message = greeting_message{};
  message.said.size = size;
  auto* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &memory, sizeof(int));
  return ::sendmsg(connection.get(), &message.header, MSG_DONTWAIT | MSG_NOSIGNAL)
         == static_cast<ssize_t>(sizeof(greeting));
}

class memory_offer_thread final : public memory_offer {
public:
  memory_offer_thread(std::string name, unique_fd memory, uint64_t size, std::optional<gid_t> group,
                      unique_fd listener, unique_fd stop)
    : name_(std::move(name)), memory_(std::move(memory)), size_(size), group_(group),
      listener_(std::move(listener)), stop_(std::move(stop)), thread_([this] { run(); }) {}

  ~memory_offer_thread() override {
    // An eventfd accepts this write at once; a failure could not be handled.
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

  const std::string& name() const noexcept override { return name_; }

private:
  void run() {
    for (;;) {
      auto events = std::vector<pollfd>{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      // Nothing is read from readers; poll always reports that they hang up.
      for (const auto& reader : readers_)
        events.push_back({reader.get(), 0, 0});
      static_cast<void>(::poll(events.data(), events.size(), -1));
      if (events[0].revents != 0)
        return;
      auto position = size_t{2};
      std::erase_if(readers_, [&](const auto&) { return events[position++].revents != 0; });
      if (events[1].revents != 0 && !accept_one())
        // Polls the stop event only: the listener would stay readable and burn a core.
        static_cast<void>(::poll(events.data(), 1, exhausted_ms));
    }
  }

  /// @returns false if the process cannot accept connections for now
  bool accept_one() {
    auto connection
      = unique_fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!connection)
      return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (!is_of_own_user_or(group_, connection.get())) {
      const auto peer = socket_peer_of(connection.get());
      spdlog::warn("memory {}: refused a process of user {}", name_,
                   peer ? std::to_string(peer->user) : "unknown");
    } else if (readers_.size() >= limits::memory_readers)
      spdlog::warn("memory {}: refused a process: {} others read it", name_, readers_.size());
    else if (!hand_over(connection, memory_.get(), size_))
      spdlog::warn("memory {}: a peer left before it was answered", name_);
    else
      readers_.push_back(std::move(connection));
    return true;
  }

  std::string name_;
  unique_fd memory_;
  uint64_t size_;
  std::optional<gid_t> group_;
  unique_fd listener_;
  unique_fd stop_;
  /// Connections of peers that mapped the memory; used by the thread only.
  std::vector<unique_fd> readers_;
  /// Last, because it uses all members above.
  std::thread thread_;
};

result<std::pair<greeting, unique_fd>> receive(const unique_fd& connection,
                                               const std::string& name) {
  auto message = greeting_message{};
  auto got = ssize_t{};
  do
    got = ::recvmsg(connection.get(), &message.header, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0)
    return fail(ec::peer_unreachable,
                "the owner of memory " + name + " does not answer: " + failure_of("recvmsg"));
  if (got == 0)
    return fail(ec::peer_unreachable, "the owner of memory " + name + " refused");
  auto fd = unique_fd{};
  const auto* rights = CMSG_FIRSTHDR(&message.header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS
      && rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    auto raw = -1;
    std::memcpy(&raw, CMSG_DATA(rights), sizeof(raw));
    fd = unique_fd{raw};
  }
  if (got == static_cast<ssize_t>(old_greeting_bytes))
    message.said.stays = 0;
  else if (got != static_cast<ssize_t>(sizeof(greeting)))
    fd = {};
  if (message.said.magic != greeting{}.magic || !fd)
    return fail(ec::malformed_message, "the owner of memory " + name + " sent something else");
  return std::pair{message.said, std::move(fd)};
}

} // namespace

memory_offer::~memory_offer() = default;

result<std::unique_ptr<memory_offer>>
memory_offer::start(const shared_memory& memory, peer_access access, std::optional<gid_t> group) {
  auto name = HICACHE_TRY(random_name());
  auto own = descriptor_for(memory, access);
  if (!own)
    return fail(ec::io_failure, failure_of("fcntl"));
  auto stop = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!stop)
    return fail(ec::io_failure, failure_of("eventfd"));
  auto listener = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!listener)
    return fail(ec::io_failure, failure_of("socket"));
  const auto at = abstract_address(name);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&at->address), at->length) != 0)
    return fail(ec::io_failure, failure_of("bind"));
  if (::listen(listener.get(), backlog) != 0)
    return fail(ec::io_failure, failure_of("listen"));
  return std::make_unique<memory_offer_thread>(std::move(name), std::move(own), memory.size(),
                                               group, std::move(listener), std::move(stop));
}

result<mapped_peer_memory> open_peer_memory(const std::string& name, peer_access access,
                                            std::optional<uid_t> owner) {
  const auto at = abstract_address(name);
  if (!at)
    return fail(ec::peer_unreachable, "'" + name + "' is not the name of shared memory");
  auto connection = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!connection)
    return fail(ec::io_failure, failure_of("socket"));
  // SO_SNDTIMEO also bounds connect, which blocks while the owner's queue is full.
  const auto limit = timeval{limits::peer_memory_time.count(), 0};
  if (::setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0
      || ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0)
    return fail(ec::io_failure, failure_of("setsockopt"));
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&at->address), at->length) != 0)
    return fail(ec::peer_unreachable,
                "memory " + name + " is not offered on this host: " + failure_of("connect"));
  // Any user could take a name that a dead owner left free.
  const auto peer = socket_peer_of(connection.get());
  if (!peer || (peer->user != ::geteuid() && peer->user != owner))
    return fail(ec::peer_unreachable, "memory " + name + " belongs to another user");
  auto received = HICACHE_TRY(receive(connection, name));
  auto mapped = mapped_peer_memory::open(
    received.second, received.first.stays != 0 ? std::move(connection) : unique_fd{}, access);
  if (mapped && mapped->size() != received.first.size)
    return fail(ec::malformed_message, "memory " + name + " has another size than announced");
  return mapped;
}

} // namespace hicache
