#include "base/limits.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_messages.hpp"
#include "transport/read_plan.hpp"
#include "transport/ucx.hpp"

#include <netdb.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace hicache {

namespace {

/// Turns without work before the caller sleeps. Few: the server of this host needs the core as
/// well.
constexpr auto idle_turns = 64;

class ucx_page_client;

/// One request and what becomes of it. UCX refers to it while operations are pending; stays where
/// it is.
struct transfer {
  page_request_head head;
  planned_message message;
  /// Of a reply that is being received.
  std::array<std::byte, reply_header_bytes> header;
  size_t header_length = 0;
  staging_pool::buffer staging;
  /// Where the bytes go: staging, or the targets themselves.
  std::span<std::byte> received;
  /// The operations of UCX that refer to this.
  int pending = 0;
  /// Who waits for it; null once the plan knows what became of it, or does not want to.
  ucx_page_client* reader = nullptr;
};

using transfer_ptr = std::unique_ptr<transfer>;

struct server_connection {
  ucx_connection link;
  uint64_t last_use = 0;
};

/// What one call does with one server.
struct stream {
  /// Null until there is something to ask for.
  std::shared_ptr<server_connection> server;
  std::vector<transfer_ptr> in_flight;
  /// When the server delivered something last.
  time_point moved;
  bool is_late = false;
  bool has_failed = false;
};

class ucx_page_client final : public page_client {
public:
  explicit ucx_page_client(bool lends) : lends_(lends) {}

  ~ucx_page_client() override { close_worker(); }

  /// Starts UCX on these interfaces, without any connection.
  result<void> open(interface_names interfaces) {
    close_worker();
    auto context = make_ucx_context(interfaces);
    if (!context)
      return tl::unexpected{context.error()};
    auto worker = make_ucx_worker(*context);
    if (!worker)
      return tl::unexpected{worker.error()};
    context_ = std::move(*context);
    worker_ = std::move(*worker);
    interfaces_ = std::move(interfaces);
    return receive_messages(worker_, page_reply_message, on_reply, this);
  }

  std::vector<result<range_answer>> read(const range_reads& wanted, time_point deadline) override {
    const auto guard = std::lock_guard{mutex_};
    auto plan = read_plan{wanted.ranges, standing_of(wanted.servers), lends_};
    if (auto opened = open_towards(wanted.servers); !opened)
      return plan.finish(opened.error());
    plan_ = &plan;
    auto streams = std::vector<stream>(wanted.servers.size());
    run(wanted.servers, streams, deadline);
    plan_ = nullptr;
    for (auto i = size_t{0}; i < streams.size(); ++i)
      close(wanted.servers[i], streams[i]);
    drain(worker_);
    settle();
    return plan.finish({ec::deadline_exceeded, "it took too long"});
  }

private:
  // -- callbacks of UCX, inside progress --------------------------------------

  static ucs_status_t on_reply(void* argument, const void* header, size_t header_length, void* data,
                               size_t length, const ucp_am_recv_param_t* param) {
    auto* self = static_cast<ucx_page_client*>(argument);
    const auto head = std::span{static_cast<const std::byte*>(header), header_length};
    auto reply = decode_page_reply(head);
    if (!reply)
      return UCS_OK;
    const auto known = self->waiting_.find(reply->id);
    if (known == self->waiting_.end())
      return UCS_OK;
    auto& answered = *known->second;
    self->waiting_.erase(known);
    if (reply->refusal.code != ec::none)
      self->lose(answered, reply->refusal);
    else if (length > reply_bytes)
      self->lose(answered, {ec::malformed_message, "the page server sent too much"});
    else if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
      return self->fetch(answered, head, data, length);
    else
      self->take(answered, head, {static_cast<const std::byte*>(data), length});
    return UCS_OK;
  }

  static void on_sent(void* request, ucs_status_t, void* sent) {
    --static_cast<transfer*>(sent)->pending;
    ucp_request_free(request);
  }

  static void on_fetched(void* request, ucs_status_t status, size_t, void* fetched) {
    auto& x = *static_cast<transfer*>(fetched);
    --x.pending;
    ucp_request_free(request);
    // Nobody wants one that read() gave up.
    if (x.reader == nullptr)
      return;
    if (status == UCS_OK)
      x.reader->take(x, std::span{x.header}.first(x.header_length), x.received);
    else
      x.reader->lose(x, {ec::peer_unreachable, ucs_status_string(status)});
  }

  /// Begins to receive the bytes of a rendezvous.
  ucs_status_t fetch(transfer& into, std::span<const std::byte> header, void* descriptor,
                     size_t length) {
    std::ranges::copy(header, into.header.begin());
    into.header_length = header.size();
    into.received = plan_->target_of(into.message);
    if (into.received.size() != length) {
      into.staging = staging_.take();
      into.received = {into.staging.get(), length};
    }
    auto params = ucp_request_param_t{};
    params.op_attr_mask
      = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv_am = on_fetched;
    params.user_data = &into;
    ++into.pending;
    const auto status
      = ucp_am_recv_data_nbx(worker_.get(), descriptor, into.received.data(), length, &params);
    if (UCS_PTR_IS_ERR(status)) {
      --into.pending;
      lose(into, {ec::peer_unreachable, ucs_status_string(UCS_PTR_STATUS(status))});
    }
    return UCS_INPROGRESS;
  }

  void take(transfer& answered, std::span<const std::byte> header,
            std::span<const std::byte> data) {
    if (auto fits = plan_->deliver(answered.message, header, data); !fits)
      plan_->fail(answered.message, fits.error());
    answered.reader = nullptr;
  }

  void lose(transfer& answered, const error& why) {
    plan_->fail(answered.message, why);
    answered.reader = nullptr;
  }

  // -- internal steps ---------------------------------------------------------

  /// Starts UCX anew if some of the servers are reached by interfaces that it does not use yet.
  result<void> open_towards(const std::vector<std::string>& servers) {
    auto interfaces = interfaces_;
    for (const auto& address : servers)
      if (!servers_.contains(address))
        if (const auto at = address_of(address))
          interfaces.merge(interfaces_towards(*at));
    return interfaces == interfaces_ && worker_.get() != nullptr ? result<void>{}
                                                                 : open(std::move(interfaces));
  }

  static std::optional<sockaddr_storage> address_of(const std::string& address) {
    const auto parts = split_address(address);
    return parts ? resolve(parts->first, parts->second, AI_NUMERICHOST) : std::nullopt;
  }

  void close_worker() {
    servers_.clear();
    if (worker_.get() != nullptr)
      drain(worker_);
    // Ends what is pending, so the transfers go after it.
    worker_ = {};
    retired_.clear();
  }

  std::vector<server_standing> standing_of(const std::vector<std::string>& servers) {
    const auto now = std::chrono::steady_clock::now();
    const auto is_over = [now](const auto& entry) { return entry.second <= now; };
    std::erase_if(avoided_, is_over);
    std::erase_if(late_, is_over);
    auto standing = std::vector<server_standing>{};
    for (const auto& address : servers)
      standing.push_back(avoided_.contains(address) ? server_standing::avoided
                         : late_.contains(address)  ? server_standing::late
                                                    : server_standing::good);
    return standing;
  }

  /// Does all that can be done until the deadline.
  void run(const std::vector<std::string>& servers, std::vector<stream>& streams,
           time_point deadline) {
    auto idle = 0;
    while (!plan_->is_over()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline)
        return;
      auto until = deadline;
      for (auto i = size_t{0}; i < streams.size(); ++i)
        until = std::min(until, advance(i, servers[i], streams[i], now));
      idle = ucp_worker_progress(worker_.get()) != 0 ? 0 : idle + 1;
      if (idle >= idle_turns) {
        static_cast<void>(
          wait_for_events(worker_, -1, std::chrono::ceil<std::chrono::milliseconds>(until - now)));
        idle = 0;
      }
    }
  }

  /// Sends a server what may be in flight; gives it up if it is no use any more.
  /// @returns when to look again at the latest
  time_point advance(size_t number, const std::string& address, stream& each, time_point now) {
    const auto ended = std::erase_if(each.in_flight, [this](auto& message) {
      if (message->reader != nullptr)
        return false;
      retire(std::move(message));
      return true;
    });
    if (ended != 0 || each.in_flight.empty())
      each.moved = now;
    if (each.has_failed || (each.in_flight.empty() && !plan_->has_next(number)))
      return time_point::max();
    const auto give_up = [&](ec code, const std::string& why) {
      each.has_failed = true;
      plan_->fail_server(number, {code, "reading from " + address + ": " + why});
      if (code == ec::peer_unreachable)
        avoided_.try_emplace(address, now + limits::read_avoidance);
      return now;
    };
    if (!each.server) {
      auto found = find_server(address);
      if (!found)
        return give_up(found.error().code, found.error().detail);
      each.server = std::move(*found);
    }
    if (each.server->link.failure != UCS_OK)
      return give_up(ec::peer_unreachable, ucs_status_string(each.server->link.failure));
    if (now - each.moved >= limits::read_stall)
      return give_up(ec::peer_unreachable, "it delivers nothing");
    if (!each.is_late && now - each.moved >= limits::read_hedge) {
      each.is_late = true;
      if (plan_->hedge(number))
        late_.try_emplace(address, now + limits::read_avoidance);
    }
    while (each.in_flight.size() < limits::transfers_in_flight && plan_->has_next(number))
      send(each, plan_->next(number));
    return each.moved + (each.is_late ? duration{limits::read_stall} : limits::read_hedge);
  }

  void close(const std::string& address, stream& ended) {
    // What is still under way must not be taken for an answer to a later call.
    const auto is_under_way = [](const transfer_ptr& x) { return x->reader != nullptr; };
    if (ended.has_failed || std::ranges::any_of(ended.in_flight, is_under_way))
      servers_.erase(address);
    for (auto& message : ended.in_flight)
      retire(std::move(message));
    // The last one to hold an erased connection: it is closed here, before the caller drains.
    ended.server = nullptr;
  }

  void send(stream& each, planned_message message) {
    auto& sent = *each.in_flight.emplace_back(std::make_unique<transfer>());
    sent.message = std::move(message);
    sent.reader = this;
    sent.head.id = ++last_id_;
    sent.head.count = static_cast<uint32_t>(sent.message.spans.size());
    waiting_.emplace(sent.head.id, &sent);
    auto params = ucp_request_param_t{};
    params.op_attr_mask
      = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.cb.send = on_sent;
    params.user_data = &sent;
    params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
    const auto& spans = sent.message.spans;
    const auto status
      = ucp_am_send_nbx(each.server->link.endpoint.get(), page_request_message, &sent.head,
                        sizeof(sent.head), spans.data(), spans.size() * sizeof(page_span), &params);
    if (UCS_PTR_IS_PTR(status)) {
      ++sent.pending;
    } else if (UCS_PTR_IS_ERR(status)) {
      waiting_.erase(sent.head.id);
      lose(sent, {ec::peer_unreachable, ucs_status_string(UCS_PTR_STATUS(status))});
    }
  }

  /// The connection to a server, made if there is none that works.
  result<std::shared_ptr<server_connection>> find_server(const std::string& address) {
    // Notices the servers that went away since the last call.
    drain(worker_);
    std::erase_if(servers_, [](const auto& x) { return x.second->link.failure != UCS_OK; });
    std::erase_if(retired_, [](const auto& x) { return x->pending == 0; });
    if (auto at = servers_.find(address); at != servers_.end()) {
      at->second->last_use = ++uses_;
      return at->second;
    }
    const auto at = address_of(address);
    if (!at)
      return fail(ec::invalid_argument,
                  "'" + address + "' is not the address of a page server: expected host:port");
    if (servers_.size() >= limits::page_connections)
      servers_.erase(
        std::min_element(servers_.begin(), servers_.end(), [](const auto& x, const auto& y) {
          return x.second->last_use < y.second->last_use;
        }));
    auto made = std::make_shared<server_connection>();
    if (auto connected = connect(worker_, *at, made->link); !connected)
      return fail(ec::peer_unreachable, connected.error().detail);
    made->last_use = ++uses_;
    return servers_.emplace(address, std::move(made)).first->second;
  }

  /// Lets go of a transfer: at once, or when UCX is done with it.
  void retire(transfer_ptr message) {
    waiting_.erase(message->head.id);
    message->reader = nullptr;
    if (message->pending > 0)
      retired_.push_back(std::move(message));
    else
      staging_.give_back(std::move(message->staging));
  }

  /// Waits until nothing is received into targets any more. UCX ends what closed connections were
  /// receiving, and does so when their lanes are destroyed; neither takes the peer.
  void settle() {
    const auto is_received
      = [](const transfer_ptr& x) { return x->pending > 0 && !x->received.empty() && !x->staging; };
    while (std::ranges::any_of(retired_, is_received))
      ucp_worker_progress(worker_.get());
  }

  std::mutex mutex_;
  interface_names interfaces_;
  ucx_context context_;
  /// Nobody waits for them, but UCX still refers to them: for moments, or until their connection is
  /// closed.
  std::vector<transfer_ptr> retired_;
  ucx_worker worker_;
  std::map<std::string, std::shared_ptr<server_connection>> servers_;
  const bool lends_;
  /// Those that are not asked, and those that are asked last; until when.
  std::map<std::string, time_point> avoided_;
  std::map<std::string, time_point> late_;
  /// Of the call under way.
  read_plan* plan_ = nullptr;
  std::unordered_map<uint64_t, transfer*> waiting_;
  staging_pool staging_;
  uint64_t last_id_ = 0;
  uint64_t uses_ = 0;
};

} // namespace

page_client::~page_client() = default;

result<std::unique_ptr<page_client>> page_client::create(bool lends) {
  auto client = std::make_unique<ucx_page_client>(lends);
  // Other interfaces when there is something to read by them.
  const auto here = resolve("127.0.0.1", "0", AI_NUMERICHOST);
  if (auto opened = client->open(interfaces_with(*here)); !opened)
    return tl::unexpected{opened.error()};
  return client;
}

} // namespace hicache
