#include "runtime/http_listener.hpp"

#include "base/try.hpp"
#include "hicache/clock.hpp"

#include <spdlog/spdlog.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <semaphore>

namespace hicache {

namespace {

/// Time a client has to close the connection after it got its answer.
constexpr auto farewell_time = std::chrono::seconds{1};

/// See http_listener::client.
thread_local auto answered_client = socket_t{INVALID_SOCKET};

/// A connection, as httplib reads and writes it. httplib's own stream limits the time between two
/// bytes; this one limits the time and length of the whole request.
class connection final : public httplib::Stream {
public:
  connection(socket_t socket, const http_limits& most)
    : socket_(socket), time_(most.request_time),
      read_until_(std::chrono::steady_clock::now() + time_), bytes_left_(most.request_bytes) {}

  bool is_readable() const override { return taken_ < filled_ || wait(POLLIN, read_until_); }

  bool is_writable() const override {
    return wait(POLLOUT, std::chrono::steady_clock::now() + time_);
  }

  ssize_t read(char* to, size_t size) override {
    if (taken_ == filled_) {
      const auto got = receive();
      if (got <= 0)
        return got;
    }
    const auto part = std::min(size, filled_ - taken_);
    std::memcpy(to, buffer_.data() + taken_, part);
    taken_ += part;
    return static_cast<ssize_t>(part);
  }

  ssize_t write(const char* from, size_t size) override {
    if (!is_writable())
      return -1;
    return ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Unused by the routes.
  void get_remote_ip_and_port(std::string&, int&) const override {}

  void get_local_ip_and_port(std::string&, int&) const override {}

  /// Hidden, because httplib rejects descriptors beyond select()'s range. A rank with a thousand
  /// peers has such descriptors, and poll() accepts them.
  socket_t socket() const override { return INVALID_SOCKET; }

  /// Shuts down sending and waits for the client to close. Closing while bytes are unread could
  /// drop an answer that the client has not read yet.
  void linger() {
    ::shutdown(socket_, SHUT_WR);
    read_until_ = std::chrono::steady_clock::now() + std::min<duration>(time_, farewell_time);
    bytes_left_ = limits::admin_request_bytes;
    while (receive() > 0)
      continue;
  }

private:
  bool wait(short what, time_point until) const {
    for (;;) {
      const auto left
        = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      auto asked = pollfd{socket_, what, 0};
      const auto ready = ::poll(&asked, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
      if (ready >= 0 || errno != EINTR)
        return ready > 0;
    }
  }

  /// Refills the buffer. @returns as recv(); also -1 when the time or byte limit is reached
  ssize_t receive() {
    taken_ = filled_ = 0;
    if (bytes_left_ == 0 || !wait(POLLIN, read_until_))
      return -1;
    const auto got
      = ::recv(socket_, buffer_.data(), std::min(buffer_.size(), bytes_left_), MSG_DONTWAIT);
    if (got > 0) {
      filled_ = static_cast<size_t>(got);
      bytes_left_ -= filled_;
    }
    return got;
  }

  const socket_t socket_;
  const duration time_;
  time_point read_until_;
  size_t bytes_left_;
  std::array<char, 4096> buffer_;
  size_t taken_ = 0;
  size_t filled_ = 0;
};

/// Worker threads with a bounded queue. If it is full, clients stay in the kernel's backlog.
class bounded_pool final : public httplib::ThreadPool {
public:
  explicit bounded_pool(const http_limits& most)
    : httplib::ThreadPool(most.threads), places_(static_cast<std::ptrdiff_t>(most.connections)) {}

  void enqueue(std::function<void()> job) override {
    places_.acquire();
    httplib::ThreadPool::enqueue([this, job = std::move(job)] {
      job();
      places_.release();
    });
  }

private:
  std::counting_semaphore<> places_;
};

} // namespace

bool has_hung_up(socket_t client) noexcept {
  auto asked = pollfd{client, POLLRDHUP, 0};
  return ::poll(&asked, 1, 0) > 0;
}

http_listener::~http_listener() {
  if (!thread_.joinable())
    return;
  {
    const auto guard = std::lock_guard{mutex_};
    stopping_ = true;
    for (const auto socket : open_)
      ::shutdown(socket, SHUT_RD);
  }
  stop();
  thread_.join();
  if (!socket_path_.empty())
    ::unlink(socket_path_.c_str());
}

result<void> http_listener::bind(rpc::endpoint& where) {
  if (where.is_path()) {
    svr_sock_ = HICACHE_TRY(listen_on_unix_socket(where.path()));
    socket_path_ = where.path();
    return {};
  }
  // httplib's default, SO_REUSEPORT, would let two servers share a port.
  set_socket_options([](socket_t socket) {
    const auto yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  auto port = int{where.port};
  if (port == 0)
    port = bind_to_any_port(where.host);
  else if (!bind_to_port(where.host, port))
    port = -1;
  if (port < 0)
    return fail(ec::invalid_argument,
                "cannot listen on " + to_string(where)
                  + "; expected an address of this machine and a port that is free");
  where.port = static_cast<uint16_t>(port);
  // httplib lets five connections wait; more would be refused while all threads answer.
  ::listen(svr_sock_, SOMAXCONN);
  return {};
}

result<rpc::endpoint> http_listener::start(rpc::endpoint address) {
  HICACHE_TRY(bind(address));
  // stop() has no effect before listening begins, which is when the queue is created.
  auto listening = std::promise<void>{};
  new_task_queue = [&] {
    listening.set_value();
    return std::make_unique<bounded_pool>(limits_).release();
  };
  thread_ = std::thread{[this, address] {
    if (!listen_after_bind())
      spdlog::warn("no one answers on {} any more: accepting connections failed",
                   to_string(address));
  }};
  listening.get_future().wait();
  return address;
}

socket_t http_listener::client() noexcept {
  return answered_client;
}

bool http_listener::process_and_close_socket(socket_t socket) {
  {
    const auto guard = std::lock_guard{mutex_};
    if (stopping_) {
      ::close(socket);
      return false;
    }
    open_.insert(socket);
  }
  try {
    auto stream = connection{socket, limits_};
    auto closed = false;
    answered_client = socket;
    // Answers are short, so range requests are ignored.
    process_request(stream, true, closed, [](httplib::Request& x) { x.ranges.clear(); });
    stream.linger();
  } catch (const std::exception& ex) {
    spdlog::warn("an HTTP request failed: {}", ex.what());
  }
  answered_client = INVALID_SOCKET;
  const auto guard = std::lock_guard{mutex_};
  open_.erase(socket);
  ::close(socket);
  return true;
}

} // namespace hicache
