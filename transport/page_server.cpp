#include "base/check.hpp"
#include "base/limits.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_demand.hpp"
#include "transport/page_messages.hpp"
#include "transport/shared_memory.hpp"
#include "transport/ucx.hpp"

#include <spdlog/spdlog.h>

#include <netdb.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Replies longer than this go by rendezvous: the reader then provides the memory, rather than UCX.
constexpr auto rendezvous_bytes = size_t{64} << 10;

/// Turns without work before the thread sleeps. Few: the readers of this host need the core as
/// well.
constexpr auto idle_turns = 64;

/// Turns between two looks for readers that are gone.
constexpr auto expel_turns = 64;

/// How often the thread looks for replies that nobody takes, while there are replies.
constexpr auto watch_interval = std::chrono::milliseconds{500};

struct reader {
  ucx_connection link;
  /// Its requests in line. Replies under way do not count: the reader has its bytes, and may ask
  /// again, before UCX tells us.
  size_t waiting = 0;
  /// Its replies that UCX has not finished.
  size_t replies = 0;
  /// Why the server gives the reader up; empty while it does not.
  std::string fault;
  /// True once the endpoint is closed; requests and replies may still refer to the reader.
  bool gone = false;
};

/// A request that waits for its turn.
struct page_request {
  std::shared_ptr<reader> from;
  uint64_t id = 0;
  std::vector<page_span> spans;
};

/// A reply that UCX may still be reading; stays where it is.
struct page_reply {
  std::shared_ptr<reader> to;
  struct {
    page_reply_head head;
    span_answer answer;
  } header;
  /// Of several spans.
  staging_pool::buffer gathered;
  time_point began;
  bool sent = false;
};

class ucx_page_server final : public page_server {
public:
  ucx_page_server(std::span<const std::byte> memory, range_guard guard, ucx_context context,
                  ucx_worker worker, unique_fd stop)
    : memory_(memory), guard_(std::move(guard)), context_(std::move(context)),
      stop_(std::move(stop)), worker_(std::move(worker)) {}

  ~ucx_page_server() override {
    if (!thread_.joinable())
      return;
    const auto one = uint64_t{1};
    // An eventfd takes this write at once; there is nothing to do about a failure.
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }

  result<void> open(const sockaddr_storage& at, const std::string& host) {
    auto received = receive_messages(worker_, page_request_message, on_request, this);
    if (!received)
      return received;
    auto params = ucp_listener_params_t{};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&at);
    params.sockaddr.addrlen = address_length(at);
    params.conn_handler.cb = on_connect;
    params.conn_handler.arg = this;
    auto listener = ucp_listener_h{};
    if (auto status = ucp_listener_create(worker_.get(), &params, &listener); status != UCS_OK)
      return fail(ec::io_failure, "cannot listen on " + host + ": " + ucs_status_string(status));
    listener_ = ucx_listener{listener};
    auto chosen = ucp_listener_attr_t{};
    chosen.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    if (auto status = ucp_listener_query(listener, &chosen); status != UCS_OK)
      return fail(ec::io_failure, std::string{"ucp_listener_query: "} + ucs_status_string(status));
    address_ = format_address(chosen.sockaddr);
    thread_ = std::thread{[this] { run(); }};
    return {};
  }

  const std::string& address() const noexcept override { return address_; }

  uint64_t sent_bytes() const noexcept override { return sent_bytes_; }

private:
  // -- callbacks of UCX, inside progress --------------------------------------

  static void on_connect(ucp_conn_request_h request, void* self) {
    static_cast<ucx_page_server*>(self)->arrivals_.push_back(request);
  }

  static ucs_status_t on_request(void* argument, const void* header, size_t header_length,
                                 void* data, size_t length, const ucp_am_recv_param_t* param) {
    auto* self = static_cast<ucx_page_server*>(argument);
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0)
      return UCS_OK;
    const auto known = self->readers_.find(param->reply_ep);
    if (known == self->readers_.end() || !known->second->fault.empty())
      return UCS_OK;
    // A request is small: one that comes by rendezvous is not from our client, and its data is not
    // here.
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
      known->second->fault = "it sent a request by rendezvous";
    else
      self->take(known->second, {static_cast<const std::byte*>(header), header_length},
                 {static_cast<const std::byte*>(data), length});
    return UCS_OK;
  }

  static void on_sent(void* request, ucs_status_t, void* reply) {
    static_cast<page_reply*>(reply)->sent = true;
    ucp_request_free(request);
  }

  /// Puts a request in line; one that is wrong is the reader's fault.
  void take(const std::shared_ptr<reader>& from, std::span<const std::byte> header,
            std::span<const std::byte> data) {
    auto question = decode_page_request(header, data);
    if (!question) {
      from->fault = question.error().detail;
    } else if (from->waiting >= limits::transfers_in_flight) {
      from->fault = "it asks for more than it may at a time";
    } else {
      ++from->waiting;
      line_.push_back({from, question->id, std::move(question->spans)});
    }
  }

  // -- the thread -------------------------------------------------------------

  void run() {
    auto idle = 0;
    for (auto turn = uint64_t{0};; ++turn) {
      idle = ucp_worker_progress(worker_.get()) != 0 ? 0 : idle + 1;
      admit();
      reap();
      answer();
      if (idle >= idle_turns || turn % expel_turns == 0)
        expel();
      if (idle < idle_turns)
        continue;
      const auto timeout = replies_.empty() ? std::chrono::milliseconds{-1} : watch_interval;
      if (wait_for_events(worker_, stop_.get(), timeout))
        break;
      idle = 0;
    }
    for (auto* request : std::exchange(arrivals_, {}))
      ucp_listener_reject(listener_.get(), request);
    listener_ = {};
    readers_.clear();
    line_.clear();
    // The worker ends the replies in flight, so their memory goes after it. They hold the last
    // references to closed readers.
    for (auto& reply : replies_)
      reply.to->link.endpoint = {};
    drain(worker_);
    worker_ = {};
    replies_.clear();
  }

  /// Accepts the readers that asked.
  void admit() {
    for (auto* request : std::exchange(arrivals_, {})) {
      if (readers_.size() >= limits::page_connections) {
        ucp_listener_reject(listener_.get(), request);
        spdlog::warn("page server {}: refused a reader: {} are connected", address_,
                     readers_.size());
        continue;
      }
      auto arrived = std::make_shared<reader>();
      if (auto accepted = accept(worker_, request, arrived->link); !accepted)
        spdlog::warn("page server {}: lost a reader: {}", address_, to_string(accepted.error()));
      else
        readers_.emplace(arrived->link.endpoint.get(), arrived);
    }
  }

  /// Answers requests in line, as many as there may be replies. Readers that are slow to take
  /// theirs are passed over.
  void answer() {
    for (auto at = line_.begin();
         at != line_.end() && replies_.size() < limits::replies_in_flight;) {
      const auto& from = *at->from;
      const auto lost = from.gone || from.link.failure != UCS_OK;
      if (!lost && from.replies >= limits::transfers_in_flight) {
        ++at;
        continue;
      }
      const auto request = std::move(*at);
      at = line_.erase(at);
      --request.from->waiting;
      if (!lost)
        send_reply(request);
    }
  }

  void send_reply(const page_request& request) {
    auto& reply = replies_.emplace_back();
    reply.to = request.from;
    ++reply.to->replies;
    reply.header.head.id = request.id;
    reply.began = std::chrono::steady_clock::now();
    const auto inside = [this](const page_span& x) {
      return x.offset <= memory_.size() && x.length <= memory_.size() - x.offset
             && x.head <= memory_.size() && sizeof(range_head) <= memory_.size() - x.head;
    };
    auto header_length = sizeof(page_reply_head);
    auto bytes = std::span<const std::byte>{};
    if (!std::ranges::all_of(request.spans, inside)) {
      reply.header.head.status = static_cast<uint32_t>(ec::invalid_argument);
    } else if (request.spans.size() == 1) {
      header_length = reply_header_bytes;
      reply.header.answer = answer_to(request.spans[0], reply.began);
      bytes = bytes_for(request.spans[0], reply.header.answer);
    } else {
      reply.gathered = staging_.take();
      bytes = gather(request.spans, reply.began, reply.gathered.get());
    }
    auto params = ucp_request_param_t{};
    params.op_attr_mask
      = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.cb.send = on_sent;
    params.user_data = &reply;
    params.flags = bytes.size() > rendezvous_bytes ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
    const auto status
      = ucp_am_send_nbx(request.from->link.endpoint.get(), page_reply_message, &reply.header,
                        header_length, bytes.data(), bytes.size(), &params);
    // Anything but a pointer means that UCX is done with the reply, well or not; a failure also
    // comes to the link.
    reply.sent = !UCS_PTR_IS_PTR(status);
  }

  span_answer answer_to(const page_span& wanted, time_point now) {
    auto head = range_head{};
    std::memcpy(head.data(), memory_.data() + wanted.head, head.size());
    // The header first, then the bytes: else bytes of the page before could be sent beside it.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!guard_({wanted.key, wanted.generation}, wanted.head, head, wanted.offset, wanted.length))
      return {span_state::gone, 0, {}};
    const auto state = demand_.admit(wanted, now);
    if (!has_bytes(state))
      return {state, 0, {}};
    sent_bytes_ += wanted.length;
    return {state, 0, head};
  }

  std::span<const std::byte> bytes_for(const page_span& wanted, const span_answer& answer) const {
    return has_bytes(answer.state) ? memory_.subspan(wanted.offset, wanted.length)
                                   : std::span<const std::byte>{};
  }

  /// Writes the data of a reply to several spans.
  std::span<const std::byte> gather(const std::vector<page_span>& spans, time_point now,
                                    std::byte* to) {
    auto length = spans.size() * sizeof(span_answer);
    for (auto i = size_t{0}; i < spans.size(); ++i) {
      const auto answer = answer_to(spans[i], now);
      std::memcpy(to + i * sizeof(answer), &answer, sizeof(answer));
      const auto bytes = bytes_for(spans[i], answer);
      std::ranges::copy(bytes, to + length);
      length += bytes.size();
    }
    return {to, length};
  }

  /// Forgets the replies that are sent and gives up the readers that do not take theirs.
  void reap() {
    const auto late = std::chrono::steady_clock::now() - limits::storage_timeout;
    for (auto at = replies_.begin(); at != replies_.end();) {
      if (!at->sent) {
        if (at->began < late && at->to->fault.empty())
          at->to->fault = "it does not take its reply";
        ++at;
        continue;
      }
      --at->to->replies;
      staging_.give_back(std::move(at->gathered));
      at = replies_.erase(at);
    }
  }

  /// Closes the connections of readers that left or misbehaved.
  void expel() {
    const auto left = std::erase_if(readers_, [this](auto& entry) {
      auto& x = *entry.second;
      if (x.fault.empty() && x.link.failure == UCS_OK)
        return false;
      if (!x.fault.empty())
        spdlog::warn("page server {}: closed a reader's connection: {}", address_, x.fault);
      x.gone = true;
      x.link.endpoint = {};
      return true;
    });
    if (left != 0)
      drain(worker_);
  }

  std::span<const std::byte> memory_;
  range_guard guard_;
  std::string address_;
  ucx_context context_;
  unique_fd stop_;
  /// All that follows belongs to the thread once it runs.
  ucx_worker worker_;
  ucx_listener listener_;
  std::vector<ucp_conn_request_h> arrivals_;
  std::map<ucp_ep_h, std::shared_ptr<reader>> readers_;
  std::list<page_request> line_;
  std::list<page_reply> replies_;
  staging_pool staging_;
  page_demand demand_;
  std::atomic<uint64_t> sent_bytes_ = 0;
  std::thread thread_;
};

} // namespace

page_server::~page_server() = default;

result<std::unique_ptr<page_server>>
page_server::start(std::span<const std::byte> memory, range_guard guard, const std::string& host) {
  HICACHE_CHECK(guard != nullptr);
  const auto at = resolve(host, "0", AI_PASSIVE);
  if (!at)
    return fail(ec::invalid_argument, "the host '" + host + "' has no address");
  auto context = make_ucx_context(interfaces_with(*at));
  if (!context)
    return tl::unexpected{context.error()};
  auto worker = make_ucx_worker(*context);
  if (!worker)
    return tl::unexpected{worker.error()};
  auto stop = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!stop)
    return fail(ec::io_failure, "eventfd: " + std::generic_category().message(errno));
  auto server = std::make_unique<ucx_page_server>(memory, std::move(guard), std::move(*context),
                                                  std::move(*worker), std::move(stop));
  if (auto opened = server->open(*at, host); !opened)
    return tl::unexpected{opened.error()};
  return server;
}

} // namespace hicache
