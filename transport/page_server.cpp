#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "transport/addresses.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_demand.hpp"
#include "transport/page_link.hpp"
#include "transport/page_messages.hpp"
#include "transport/ucx.hpp"

#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

namespace hicache {

namespace {

/// How often the thread checks for unidentified and stuck readers, while there are readers.
constexpr auto watch_interval = std::chrono::milliseconds{500};

/// Idle turns of polling UCX before sleeping. Few, as the readers of this host need the core too.
constexpr auto idle_turns = 64;

/// Events per epoll_wait.
constexpr auto event_count = 64;

/// Replaces the rest of a page that was overwritten while being sent.
constexpr auto zeros = std::array<std::byte, limits::transfer_bytes>{};

/// A queued request, and the carrier of its reply.
struct page_request {
  page_carrier* by = nullptr;
  page_question question;
};

/// One reader; receives its messages on the socket.
class reader final : public page_sink {
public:
  reader(std::string from, unique_fd socket, ssl_ctx_st* tls, time_point now)
    : name(std::move(from)), link(std::move(socket), tls, true), moved(now) {}

  ~reader() {
    if (fast)
      fast->close();
  }

  std::span<std::byte> place_for(page_message kind, std::span<const std::byte>,
                                 size_t length) override {
    const auto room = kind == page_message::greeting  ? greeting_bytes
                      : kind == page_message::request ? request_bytes
                                                      : size_t{0};
    if (length > room)
      return {};
    arriving_.resize(length);
    return arriving_;
  }

  void take(page_message kind, std::span<const std::byte> header,
            std::span<const std::byte> data) override {
    if (kind == page_message::greeting)
      greet(header, data);
    else
      ask(link, decode_page_request(header, data));
  }

  void ask(page_carrier& by, result<page_question> question) {
    if (!question)
      link.lose(question.error().detail);
    else if (!is_greeted || question->secret != secret)
      link.lose("it does not know what it was told");
    else if (waiting.size() >= limits::transfers_in_flight)
      link.lose("it asks for more than it may at a time");
    else
      waiting.push_back({&by, std::move(*question)});
  }

  /// For messages.
  const std::string name;
  page_link link;
  uint64_t secret = 0;
  /// Whether it has greeted and was answered; until then `address` holds its UCX address.
  bool is_greeted = false;
  bool is_answered = false;
  std::vector<std::byte> address;
  /// Null without UCX.
  std::shared_ptr<ucx_connection> fast;
  std::deque<page_request> waiting;
  /// The spans of the pieces being sent, in order.
  std::vector<page_span> sending;
  /// When it last made progress.
  time_point moved;

private:
  void greet(std::span<const std::byte> header, std::span<const std::byte> data) {
    const auto greeting = decode_page_greeting(header);
    if (!greeting || is_greeted)
      return link.lose(greeting ? "it says who it is again" : greeting.error().detail);
    is_greeted = true;
    address.assign(data.begin(), data.end());
  }

  std::vector<std::byte> arriving_;
};

class socket_page_server final : public page_server, page_sink {
public:
  socket_page_server(std::span<const std::byte> memory, range_guard guard,
                     page_channel_options options)
    : memory_(memory), guard_(std::move(guard)), options_(std::move(options)) {}

  ~socket_page_server() override {
    if (!thread_.joinable())
      return;
    // An eventfd accepts this write at once; a failure could not be handled.
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

  result<void> open(const sockaddr_storage& at, const std::string& host) {
    const auto cannot = [&](const char* what) {
      return fail(ec::io_failure,
                  "cannot listen on " + host + ": " + what + ": " + system_message(errno));
    };
    listener_ = unique_fd{::socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!listener_)
      return cannot("socket");
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), address_length(at)) != 0)
      return cannot("bind");
    if (::listen(listener_.get(), SOMAXCONN) != 0)
      return cannot("listen");
    auto chosen = sockaddr_storage{};
    auto length = socklen_t{sizeof(chosen)};
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&chosen), &length) != 0)
      return cannot("getsockname");
    address_ = format_address(chosen);
    stop_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    epoll_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
    if (!stop_ || !epoll_)
      return cannot("epoll");
    lane_ = HICACHE_TRY(ucx_lane::open(options_.transport, page_message::request, *this));
    if (lane_)
      watch(lane_->fd(), EPOLL_CTL_ADD, EPOLLIN);
    watch(listener_.get(), EPOLL_CTL_ADD, EPOLLIN);
    watch(stop_.get(), EPOLL_CTL_ADD, EPOLLIN);
    thread_ = std::thread{[this] { run(); }};
    return {};
  }

  const std::string& address() const noexcept override { return address_; }

  uint64_t sent_bytes() const noexcept override { return sent_bytes_; }

private:
  using readers = std::unordered_map<int, std::unique_ptr<reader>>;

  // -- received by UCX --------------------------------------------------------

  std::span<std::byte> place_for(page_message, std::span<const std::byte>, size_t length) override {
    if (length > request_bytes)
      return {};
    arriving_.resize(length);
    return arriving_;
  }

  void take(page_message, std::span<const std::byte> header,
            std::span<const std::byte> data) override {
    auto question = decode_page_request(header, data);
    if (!question)
      return;
    const auto known = greeted_.find(question->secret);
    if (known == greeted_.end() || !known->second->fast)
      return;
    known->second->ask(*known->second->fast, std::move(question));
    asked_.push_back(known->second->link.fd());
  }

  // -- the thread -------------------------------------------------------------

  void watch(int fd, int what, uint32_t events) {
    auto event = epoll_event{};
    event.events = events;
    event.data.fd = fd;
    HICACHE_CHECK(::epoll_ctl(epoll_.get(), what, fd, &event) == 0);
  }

  void run() {
    auto idle = 0;
    auto looked = std::chrono::steady_clock::now();
    for (auto events = std::array<epoll_event, event_count>{};;) {
      const auto timeout = wait_time(idle);
      const auto count = ::epoll_wait(epoll_.get(), events.data(), event_count, timeout);
      idle = count > 0 ? 0 : idle + 1;
      for (auto i = 0; i < count; ++i) {
        const auto fd = events[static_cast<size_t>(i)].data.fd;
        if (fd == stop_.get())
          return end();
        if (fd == listener_.get())
          admit();
        else if (const auto at = readers_.find(fd); at != readers_.end())
          serve(at);
      }
      if (lane_ && lane_->progress())
        idle = 0;
      for (const auto fd : std::exchange(asked_, {}))
        if (const auto at = readers_.find(fd); at != readers_.end())
          serve(at);
      if (const auto now = std::chrono::steady_clock::now(); now - looked >= watch_interval) {
        expel(now);
        looked = now;
      }
    }
  }

  /// Timeout for epoll_wait.
  int wait_time(int idle) {
    if (lane_ && (idle < idle_turns || !lane_->arm()))
      return 0;
    return readers_.empty() && !is_paused_ ? -1 : static_cast<int>(watch_interval.count());
  }

  void end() {
    listener_ = {};
    greeted_.clear();
    readers_.clear();
    lane_ = nullptr;
  }

  /// Accepts one pending reader; the others follow in the next turns.
  void admit() {
    auto from = sockaddr_storage{};
    auto length = socklen_t{sizeof(from)};
    auto socket = unique_fd{::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &length,
                                      SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!socket) {
      // Without descriptors, the reader stays queued at the listener until one is free.
      if (errno == EMFILE || errno == ENFILE)
        pause_listening();
      return;
    }
    if (readers_.size() >= limits::page_connections && !make_room()) {
      spdlog::warn("page server {}: refused {}: {} readers are connected", address_,
                   format_address(from), readers_.size());
      return;
    }
    auto tls = options_.tls ? options_.tls() : result<std::shared_ptr<ssl_ctx_st>>{nullptr};
    if (!tls) {
      spdlog::warn("page server {}: refused {}: {}", address_, format_address(from),
                   to_string(tls.error()));
      return;
    }
    const auto fd = socket.get();
    auto made = std::make_unique<reader>(format_address(from), std::move(socket), tls->get(),
                                         std::chrono::steady_clock::now());
    // Secret that requests must present; unguessable.
    HICACHE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&made->secret), sizeof(made->secret))
                  == 1);
    watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    readers_.emplace(fd, std::move(made));
  }

  /// Closes the connection that has been unidentified for longest.
  /// @returns false if all are identified
  bool make_room() {
    auto oldest = readers_.end();
    for (auto at = readers_.begin(); at != readers_.end(); ++at)
      if (!at->second->is_greeted
          && (oldest == readers_.end() || at->second->moved < oldest->second->moved))
        oldest = at;
    if (oldest == readers_.end())
      return false;
    close(oldest);
    return true;
  }

  /// Stops accepting until the next check for readers that are gone.
  void pause_listening() {
    if (std::exchange(is_paused_, true))
      return;
    spdlog::error("page server {}: out of file descriptors: readers wait", address_);
    watch(listener_.get(), EPOLL_CTL_MOD, 0);
  }

  /// Processes a reader's messages and sends what it may receive now.
  void serve(readers::iterator at) {
    auto& from = *at->second;
    retract(from);
    from.link.flush();
    from.link.pump(from);
    if (from.is_greeted && !from.is_answered)
      welcome(from);
    answer(from);
    if (!from.link.is_open() || (from.fast && !from.fast->is_open()))
      return close(at);
    watch(at->first, EPOLL_CTL_MOD,
          (from.link.events() & POLLOUT) != 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  void welcome(reader& to) {
    to.is_answered = true;
    if (lane_ && !to.address.empty())
      to.fast = lane_->connect(to.address);
    const auto greeting = page_greeting{page_protocol, 0, to.secret};
    auto parcel = page_parcel{};
    parcel.kind = page_message::greeting;
    append(parcel.header, greeting);
    if (to.fast)
      parcel.front.assign(lane_->address().begin(), lane_->address().end());
    to.link.send(std::move(parcel));
    greeted_.emplace(to.secret, &to);
  }

  void answer(reader& to) {
    while (!to.waiting.empty() && to.waiting.front().by->has_room() && to.link.is_open()) {
      const auto request = std::move(to.waiting.front());
      to.waiting.pop_front();
      to.moved = std::chrono::steady_clock::now();
      auto spans = std::vector<page_span>{};
      auto reply = reply_to(to.secret, request.question, to.moved, spans);
      if (request.by == &to.link)
        to.sending = std::move(spans);
      request.by->send(std::move(reply));
    }
  }

  /// @param sending Receives the span of each piece.
  page_parcel reply_to(uint64_t reader, const page_question& question, time_point now,
                       std::vector<page_span>& sending) {
    auto head = page_reply_head{};
    head.id = question.id;
    auto reply = page_parcel{};
    reply.kind = page_message::reply;
    const auto inside = [this](const page_span& x) {
      return x.offset <= memory_.size() && x.length <= memory_.size() - x.offset
             && x.head <= memory_.size() && sizeof(range_head) <= memory_.size() - x.head;
    };
    const auto is_inside = std::ranges::all_of(question.spans, inside);
    if (!is_inside)
      head.status = static_cast<uint32_t>(ec::invalid_argument);
    append(reply.header, head);
    if (!is_inside)
      return reply;
    auto& answers = question.spans.size() == 1 ? reply.header : reply.front;
    for (const auto& span : question.spans) {
      const auto said = answer_to(reader, span, now);
      append(answers, said);
      if (!has_bytes(said.state) || span.length == 0)
        continue;
      reply.pieces.push_back(memory_.subspan(span.offset, span.length));
      sending.push_back(span);
    }
    return reply;
  }

  template <class T>
  static void append(std::vector<std::byte>& to, const T& x) {
    const auto bytes = std::as_bytes(std::span{&x, 1});
    to.insert(to.end(), bytes.begin(), bytes.end());
  }

  /// The bytes at the head of a span, if the memory holds the page that the reader names.
  std::optional<range_head> verified_head(const page_span& wanted) const {
    auto head = range_head{};
    std::memcpy(head.data(), memory_.data() + wanted.head, head.size());
    // Header before bytes; otherwise bytes of the previous page could be sent with it.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!guard_({wanted.key, wanted.generation}, wanted.head, head, wanted.offset, wanted.length))
      return std::nullopt;
    return head;
  }

  span_answer answer_to(uint64_t reader, const page_span& wanted, time_point now) {
    const auto head = verified_head(wanted);
    if (!head)
      return {span_state::gone, 0, {}};
    const auto state = demand_.admit(reader, wanted, now);
    if (!has_bytes(state))
      return {state, 0, {}};
    sent_bytes_ += wanted.length;
    return {state, 0, *head};
  }

  /// Replaces the unsent bytes of pages that were overwritten since the reply was begun.
  void retract(reader& from) const {
    const auto pieces = from.link.unsent_pieces();
    const auto spans = std::span{from.sending}.last(std::min(pieces.size(), from.sending.size()));
    for (auto i = size_t{0}; i < spans.size(); ++i)
      if (!verified_head(spans[i]))
        pieces[i] = std::span{zeros}.first(pieces[i].size());
  }

  void close(readers::iterator at) {
    auto& left = *at->second;
    if (const auto& why = left.link.reason(); !why.empty() && why != page_link::hung_up)
      spdlog::warn("page server {}: closed the connection of {}: {}", address_, left.name, why);
    greeted_.erase(left.secret);
    readers_.erase(at);
    if (lane_)
      lane_->drain();
  }

  /// Disconnects readers that do not identify themselves or do not take their replies.
  void expel(time_point now) {
    for (auto at = readers_.begin(); at != readers_.end();) {
      auto& x = *at->second;
      const auto next = std::next(at);
      const auto takes_nothing = !x.link.has_room() || (x.fast && !x.fast->has_room());
      if (!x.is_greeted && now - x.moved >= limits::greeting_time)
        x.link.lose("it does not say who it is");
      else if (takes_nothing && now - x.moved >= limits::storage_timeout)
        x.link.lose("it does not take its reply");
      if (!x.link.is_open() || (x.fast && !x.fast->is_open()))
        close(at);
      at = next;
    }
    if (std::exchange(is_paused_, false))
      watch(listener_.get(), EPOLL_CTL_MOD, EPOLLIN);
  }

  std::span<const std::byte> memory_;
  range_guard guard_;
  page_channel_options options_;
  std::string address_;
  unique_fd stop_;
  /// All members below belong to the thread once it runs.
  unique_fd epoll_;
  unique_fd listener_;
  bool is_paused_ = false;
  /// Null without UCX.
  std::unique_ptr<ucx_lane> lane_;
  /// By socket.
  readers readers_;
  /// Readers that were sent a secret, by secret.
  std::unordered_map<uint64_t, reader*> greeted_;
  /// Sockets of readers that sent requests by UCX since the last turn.
  std::vector<int> asked_;
  std::vector<std::byte> arriving_;
  page_demand demand_;
  std::atomic<uint64_t> sent_bytes_ = 0;
  std::thread thread_;
};

} // namespace

page_server::~page_server() = default;

result<std::unique_ptr<page_server>> page_server::start(std::span<const std::byte> memory,
                                                        range_guard guard, const std::string& host,
                                                        page_channel_options options) {
  HICACHE_CHECK(guard != nullptr);
  const auto at = resolve(host, "0", AI_PASSIVE);
  if (!at)
    return fail(ec::invalid_argument, "the host '" + host + "' has no address");
  auto server = std::make_unique<socket_page_server>(memory, std::move(guard), std::move(options));
  HICACHE_TRY(server->open(*at, host));
  return server;
}

result<page_transport> parse_page_transport(std::string_view name) {
  if (name == "auto")
    return page_transport::automatic;
  if (name == "tcp")
    return page_transport::tcp;
  if (name != "ucx")
    return fail(ec::invalid_argument,
                "'" + std::string{name} + "' is no transport of pages; expected auto, tcp or ucx");
  if (!has_rdma_devices() && std::getenv("UCX_NET_DEVICES") == nullptr)
    return fail(ec::invalid_argument, "this machine has no RDMA device for ucx; expected one, or "
                                      "UCX_NET_DEVICES to name the devices that UCX may use");
  return page_transport::ucx;
}

} // namespace hicache
