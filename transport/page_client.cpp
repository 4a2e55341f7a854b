#include "base/immovable.hpp"
#include "base/limits.hpp"
#include "base/spare_pool.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/unique_fd.hpp"
#include "transport/addresses.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_link.hpp"
#include "transport/page_messages.hpp"
#include "transport/read_plan.hpp"
#include "transport/ucx.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace hicache {

namespace {

/// Idle turns of polling UCX before sleeping. Few, as the server of this host needs the core too.
constexpr auto idle_turns = 64;

class server_connection;

/// A request in flight.
struct transfer {
  uint64_t id = 0;
  planned_message message;
  const server_connection* server = nullptr;
  /// Receive buffer, unless the bytes go straight to the targets.
  staging_pool::buffer staging;
  /// Its answer is being received.
  bool is_arriving = false;
  /// The plan has processed the answer.
  bool is_over = false;
};

using transfer_ptr = std::unique_ptr<transfer>;

/// The unanswered requests of this client, and where their answers go.
class open_transfers {
public:
  /// Receives the answers of the current call.
  read_plan* plan = nullptr;

  void add(transfer& asked) { waiting_.emplace(asked.id, &asked); }

  /// Drops the answer of this request.
  void abandon(const transfer& asked) { waiting_.erase(asked.id); }

  /// @param from The sender; null: any.
  std::span<std::byte> place_for(const server_connection* from, std::span<const std::byte> header,
                                 size_t length) {
    auto* answered = find(from, header);
    if (answered == nullptr || length > reply_bytes)
      return {};
    answered->is_arriving = true;
    const auto place = plan->target_of(answered->message);
    if (place.size() == length)
      return place;
    answered->staging = staging_.take();
    return {answered->staging.get(), length};
  }

  /// @returns false if no request waits for it
  bool take(const server_connection* from, std::span<const std::byte> header,
            std::span<const std::byte> data) {
    auto* answered = find(from, header);
    if (answered == nullptr)
      return false;
    if (auto reply = decode_page_reply(header); reply->refusal.code != ec::none)
      plan->fail(answered->message, reply->refusal);
    else if (auto fits = plan->deliver(answered->message, header, data); !fits)
      plan->fail(answered->message, fits.error());
    waiting_.erase(answered->id);
    answered->is_over = true;
    staging_.give_back(std::move(answered->staging));
    return true;
  }

private:
  transfer* find(const server_connection* from, std::span<const std::byte> header) {
    const auto reply = decode_page_reply(header);
    const auto known = reply ? waiting_.find(reply->id) : waiting_.end();
    if (known == waiting_.end() || (from != nullptr && known->second->server != from))
      return nullptr;
    return known->second;
  }

  std::unordered_map<uint64_t, transfer*> waiting_;
  staging_pool staging_;
};

/// A connection to a server; receives the server's messages on the socket.
class server_connection final : public page_sink, immovable {
public:
  server_connection(unique_fd socket, ssl_ctx_st* tls, open_transfers& transfers, ucx_lane* lane)
    : link(std::move(socket), tls, false), transfers_(transfers), lane_(lane) {
    const auto greeting = page_greeting{};
    const auto bytes = std::as_bytes(std::span{&greeting, 1});
    auto parcel = page_parcel{page_message::greeting, {bytes.begin(), bytes.end()}, {}, {}};
    if (lane != nullptr)
      parcel.front.assign(lane->address().begin(), lane->address().end());
    link.send(std::move(parcel));
  }

  ~server_connection() {
    if (fast_)
      fast_->close();
  }

  std::span<std::byte> place_for(page_message kind, std::span<const std::byte> header,
                                 size_t length) override {
    if (kind == page_message::reply)
      return transfers_.place_for(this, header, length);
    if (kind != page_message::greeting || length > greeting_bytes)
      return {};
    address_.resize(length);
    return address_;
  }

  void take(page_message kind, std::span<const std::byte> header,
            std::span<const std::byte> data) override {
    if (kind == page_message::greeting)
      greet(header, data);
    else if (kind != page_message::reply || !transfers_.take(this, header, data))
      link.lose("it sent what was not requested");
  }

  /// Whether the server has greeted, and so accepts requests.
  bool is_ready() const noexcept { return secret_.has_value(); }

  bool is_open() const noexcept { return link.is_open() && (!fast_ || fast_->is_open()); }

  void ask(const transfer& what) {
    const auto& spans = what.message.spans;
    const auto head
      = page_request_head{page_protocol, static_cast<uint32_t>(spans.size()), what.id, *secret_};
    const auto header = std::as_bytes(std::span{&head, 1});
    const auto data = std::as_bytes(std::span{spans});
    auto& by = fast_ ? static_cast<page_carrier&>(*fast_) : link;
    by.send(
      {page_message::request, {header.begin(), header.end()}, {data.begin(), data.end()}, {}});
  }

  /// Whether answers come by UCX, so that unwanted ones can be refused.
  bool answers_may_be_refused() const noexcept { return fast_ != nullptr; }

  /// The answer to this request is no longer needed.
  void abandon(uint64_t id) { abandoned_.push_back(id); }

  /// An abandoned answer has arrived, perhaps from this server.
  void forget(uint64_t id) { std::erase(abandoned_, id); }

  /// Abandoned requests that the server has not answered yet.
  size_t abandoned() const noexcept { return abandoned_.size(); }

  page_link link;
  uint64_t last_use = 0;

private:
  void greet(std::span<const std::byte> header, std::span<const std::byte> address) {
    const auto greeting = decode_page_greeting(header);
    if (!greeting || is_ready())
      return link.lose(greeting ? "it says who it is again" : greeting.error().detail);
    secret_ = greeting->secret;
    if (lane_ != nullptr && !address.empty())
      fast_ = lane_->connect(address);
  }

  open_transfers& transfers_;
  ucx_lane* lane_;
  std::optional<uint64_t> secret_;
  /// Null without UCX.
  std::shared_ptr<ucx_connection> fast_;
  std::vector<std::byte> address_;
  std::vector<uint64_t> abandoned_;
};

/// The state of one call at one server.
struct stream {
  /// Null until there is something to request.
  std::shared_ptr<server_connection> server;
  std::vector<transfer_ptr> in_flight;
  /// When the server last delivered something.
  time_point moved;
  bool is_late = false;
  bool has_failed = false;
};

/// Recent failures and delays of servers. Shared by clients; any thread.
class server_record {
public:
  std::vector<server_standing> standing_of(const std::vector<std::string>& servers) {
    const auto now = std::chrono::steady_clock::now();
    const auto is_over = [now](const auto& entry) { return entry.second <= now; };
    const auto guard = std::scoped_lock{mutex_};
    std::erase_if(avoided_, is_over);
    std::erase_if(late_, is_over);
    auto standing = std::vector<server_standing>{};
    for (const auto& address : servers)
      standing.push_back(avoided_.contains(address) ? server_standing::avoided
                         : late_.contains(address)  ? server_standing::late
                                                    : server_standing::good);
    return standing;
  }

  /// @param what Not `good`.
  void note(server_standing what, const std::string& address, time_point now) {
    const auto guard = std::scoped_lock{mutex_};
    auto& noted = what == server_standing::late ? late_ : avoided_;
    noted.try_emplace(address, now + limits::read_avoidance);
  }

private:
  std::mutex mutex_; // Guards what follows.
  /// Servers not to use, and servers to use last, until the given time.
  std::map<std::string, time_point> avoided_;
  std::map<std::string, time_point> late_;
};

/// Serves one call at a time.
class socket_page_client final : page_sink, immovable {
public:
  socket_page_client(page_channel_options options, bool exports, server_record& record)
    : options_(std::move(options)), exports_(exports), record_(record) {}

  result<void> open() {
    lane_ = HICACHE_TRY(ucx_lane::open(options_.transport, page_message::reply, *this));
    return {};
  }

  ~socket_page_client() { servers_.clear(); }

  std::vector<result<range_answer>> read(const range_reads& wanted, time_point deadline) {
    auto plan = read_plan{wanted.ranges, record_.standing_of(wanted.servers), exports_};
    transfers_.plan = &plan;
    auto streams = std::vector<stream>(wanted.servers.size());
    run(wanted.servers, streams, deadline);
    if (lane_)
      lane_->settle(std::chrono::steady_clock::now() + limits::read_hedge);
    for (auto i = size_t{0}; i < streams.size(); ++i)
      close(wanted.servers[i], streams[i]);
    if (lane_) {
      lane_->drain();
      lane_->settle();
    }
    transfers_.plan = nullptr;
    return plan.finish({ec::deadline_exceeded, "it took too long"});
  }

private:
  // -- received by UCX --------------------------------------------------------

  std::span<std::byte> place_for(page_message, std::span<const std::byte> header,
                                 size_t length) override {
    const auto place = transfers_.place_for(nullptr, header, length);
    if (place.empty())
      refuse(header);
    return place;
  }

  void take(page_message, std::span<const std::byte> header,
            std::span<const std::byte> data) override {
    if (!transfers_.take(nullptr, header, data))
      refuse(header);
  }

  /// An abandoned answer has arrived: its server has room for another request.
  void refuse(std::span<const std::byte> header) {
    if (const auto reply = decode_page_reply(header))
      for (auto& [address, server] : servers_)
        server->forget(reply->id);
  }

  // -- internal steps ---------------------------------------------------------

  static std::optional<sockaddr_storage> address_of(const std::string& address) {
    const auto parts = split_address(address);
    return parts ? resolve(parts->first, parts->second, AI_NUMERICHOST) : std::nullopt;
  }

  /// Processes events until the plan is complete or the deadline expires.
  void run(const std::vector<std::string>& servers, std::vector<stream>& streams,
           time_point deadline) {
    auto idle = 0;
    while (!transfers_.plan->is_over()) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline)
        return;
      auto until = deadline;
      for (auto i = size_t{0}; i < streams.size(); ++i)
        until = std::min(until, advance(i, servers[i], streams[i], now));
      if (transfers_.plan->is_over())
        return;
      idle = lane_ && lane_->progress() ? 0 : idle + 1;
      wait(streams, until - now, idle);
    }
  }

  /// Sleeps until an event or the timeout.
  void wait(const std::vector<stream>& streams, duration time, int& idle) {
    auto events = std::vector<pollfd>{};
    for (const auto& each : streams)
      if (each.server && !each.has_failed)
        events.push_back({each.server->link.fd(), each.server->link.events(), 0});
    if (lane_) {
      events.push_back({lane_->fd(), POLLIN, 0});
      if (idle < idle_turns || !lane_->arm())
        time = {};
    }
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(time, duration{}));
    if (::poll(events.data(), events.size(), static_cast<int>(ms.count())) > 0)
      idle = 0;
  }

  /// Processes a server's answers and sends it further requests; fails a closed or stalled server.
  /// @returns when to call again at the latest
  time_point advance(size_t number, const std::string& address, stream& each, time_point now) {
    if (each.has_failed)
      return time_point::max();
    if (each.server) {
      each.server->link.flush();
      each.server->link.pump(*each.server);
    }
    auto& plan = *transfers_.plan;
    const auto ended = std::erase_if(each.in_flight, [](const auto& x) { return x->is_over; });
    const auto is_awaited
      = !each.in_flight.empty()
        || (each.server && (each.server->abandoned() > 0 || !each.server->is_ready()));
    if (ended != 0 || !is_awaited)
      each.moved = now;
    if (each.in_flight.empty() && !plan.has_next(number))
      return time_point::max();
    const auto give_up = [&](ec code, const std::string& why) {
      each.has_failed = true;
      plan.fail_server(number, {code, "reading from " + address + ": " + why});
      if (code == ec::peer_unreachable)
        record_.note(server_standing::avoided, address, now);
      return now;
    };
    if (!each.server) {
      auto found = find_server(address);
      if (!found)
        return give_up(found.error().code, found.error().detail);
      each.server = std::move(*found);
      each.moved = now;
    }
    if (!each.server->is_open())
      return give_up(ec::peer_unreachable, each.server->link.reason());
    if (now - each.moved >= limits::read_stall)
      return give_up(ec::peer_unreachable, "it delivers nothing");
    if (!each.is_late && now - each.moved >= limits::read_hedge) {
      each.is_late = true;
      if (plan.hedge(number))
        record_.note(server_standing::late, address, now);
    }
    while (each.server->is_ready()
           && each.in_flight.size() + each.server->abandoned() < limits::transfers_in_flight
           && plan.has_next(number))
      send(each, plan.next(number));
    return each.moved + (each.is_late ? duration{limits::read_stall} : limits::read_hedge);
  }

  /// Ends a call's use of a server. Outstanding UCX answers are refused on arrival; an outstanding
  /// socket answer may be half received, which ends the connection.
  void close(const std::string& address, stream& ended) {
    const auto is_held_up = [&](const transfer_ptr& x) {
      return !x->is_over && (x->is_arriving || !ended.server->answers_may_be_refused());
    };
    if (ended.has_failed || std::ranges::any_of(ended.in_flight, is_held_up))
      servers_.erase(address);
    for (const auto& each : ended.in_flight) {
      transfers_.abandon(*each);
      if (!each->is_over)
        ended.server->abandon(each->id);
    }
    // Last reference to an erased connection: closes it here, before the caller drains.
    ended.server = nullptr;
  }

  void send(stream& each, planned_message message) {
    auto& sent = *each.in_flight.emplace_back(std::make_unique<transfer>());
    sent.message = std::move(message);
    sent.server = each.server.get();
    sent.id = ++last_id_;
    transfers_.add(sent);
    each.server->ask(sent);
  }

  /// The open connection to a server; connects if there is none.
  result<std::shared_ptr<server_connection>> find_server(const std::string& address) {
    if (const auto at = servers_.find(address); at != servers_.end()) {
      // Detects a close since the last call.
      at->second->link.pump(*at->second);
      if (at->second->is_open()) {
        at->second->last_use = ++uses_;
        return at->second;
      }
      servers_.erase(at);
    }
    const auto at = address_of(address);
    if (!at)
      return fail(ec::invalid_argument,
                  "'" + address + "' is not the address of a page server: expected host:port");
    if (servers_.size() >= limits::page_connections)
      servers_.erase(std::ranges::min_element(
        servers_, {}, [](const auto& entry) { return entry.second->last_use; }));
    auto tls
      = HICACHE_TRY(options_.tls ? options_.tls() : result<std::shared_ptr<ssl_ctx_st>>{nullptr});
    auto socket = unique_fd{::socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!socket
        || (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*at), address_length(*at))
              != 0
            && errno != EINPROGRESS))
      return fail(ec::peer_unreachable, system_message(errno));
    auto made
      = std::make_shared<server_connection>(std::move(socket), tls.get(), transfers_, lane_.get());
    made->last_use = ++uses_;
    return servers_.emplace(address, std::move(made)).first->second;
  }

  page_channel_options options_;
  const bool exports_;
  server_record& record_;
  open_transfers transfers_;
  /// Null without UCX.
  std::unique_ptr<ucx_lane> lane_;
  std::map<std::string, std::shared_ptr<server_connection>> servers_;
  uint64_t last_id_ = 0;
  uint64_t uses_ = 0;
};

/// One client per running call, most recently used first, so that later calls reuse connections.
class page_client_pool final : public page_client {
public:
  page_client_pool(page_channel_options options, bool exports)
    : options_(std::move(options)), exports_(exports) {
    if (options_.tls)
      options_.tls = [this, make = options_.tls] {
        const auto guard = std::scoped_lock{tls_mutex_};
        return make();
      };
  }

  result<void> open() {
    auto first = HICACHE_TRY(make());
    idle_.give_back(std::move(first));
    return {};
  }

  std::vector<result<range_answer>> read(const range_reads& wanted, time_point deadline) override {
    auto idle = idle_.take();
    auto client = idle ? result<client_ptr>{std::move(idle)} : make();
    if (!client)
      return std::vector<result<range_answer>>(wanted.ranges.size(),
                                               tl::unexpected{client.error()});
    auto answers = (*client)->read(wanted, deadline);
    idle_.give_back(std::move(*client));
    return answers;
  }

private:
  using client_ptr = std::unique_ptr<socket_page_client>;

  result<client_ptr> make() {
    auto client = std::make_unique<socket_page_client>(options_, exports_, record_);
    HICACHE_TRY(client->open());
    return client;
  }

  page_channel_options options_;
  const bool exports_;
  server_record record_;
  std::mutex tls_mutex_; // Held while a context is made.
  spare_pool<socket_page_client> idle_;
};

} // namespace

page_client::~page_client() = default;

result<std::unique_ptr<page_client>> page_client::create(page_channel_options options,
                                                         bool exports) {
  auto client = std::make_unique<page_client_pool>(std::move(options), exports);
  HICACHE_TRY(client->open());
  return client;
}

} // namespace hicache
