#include "base/limits.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_messages.hpp"
#include "transport/ucx.hpp"

#include <netdb.h>

#include <algorithm>
#include <cstring>
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

/// A part of a range, in one message.
struct piece {
  size_t range = 0;
  size_t length = 0;
  /// Where its bytes go: on from byte `skip` of the first of these.
  std::span<const std::span<std::byte>> targets;
  size_t skip = 0;

  /// Copies its bytes to where they are wanted.
  void scatter(const std::byte* bytes) const {
    auto begin = skip;
    auto left = length;
    for (auto to = targets.begin(); left > 0; ++to, begin = 0) {
      const auto count = std::min(to->size() - begin, left);
      if (count > 0)
        std::memcpy(to->data() + begin, bytes, count);
      bytes += count;
      left -= count;
    }
  }
};

/// One request and what becomes of it. UCX refers to it while operations are pending; stays where
/// it is.
struct transfer {
  page_request_head head;
  std::vector<page_span> spans;
  std::vector<piece> pieces;
  size_t length = 0;
  staging_pool::buffer staging;
  /// The operations of UCX that refer to this.
  int pending = 0;
  /// Set once the transfer has ended; the error, if any, with it.
  bool ended = false;
  error failure;

  void end(ec code = ec::none, std::string detail = {}) {
    ended = true;
    failure = {code, std::move(detail)};
  }

  /// Takes the reply's bytes to where they are wanted.
  void scatter(const std::byte* bytes) {
    for (const auto& part : pieces) {
      part.scatter(bytes);
      bytes += part.length;
    }
  }
};

using transfer_ptr = std::unique_ptr<transfer>;

/// Cuts ranges into messages.
class message_builder {
public:
  void add(size_t range, const remote_range& wanted) {
    auto offset = wanted.offset;
    auto next = piece{range, 0, wanted.targets, 0};
    for (auto left = length_of(wanted.targets); left > 0; left -= next.length) {
      auto& into = open_transfer(offset);
      next.length = std::min(left, limits::transfer_bytes - into.length);
      if (continues(into, offset))
        into.spans.back().length += next.length;
      else
        into.spans.push_back({offset, next.length});
      into.pieces.push_back(next);
      into.length += next.length;
      offset += next.length;
      move_on(next);
    }
  }

  std::vector<transfer_ptr> take() { return std::move(transfers_); }

private:
  static size_t length_of(std::span<const std::span<std::byte>> targets) {
    auto length = size_t{0};
    for (const auto& target : targets)
      length += target.size();
    return length;
  }

  /// Lets the piece begin where it ended.
  static void move_on(piece& next) {
    next.skip += next.length;
    while (!next.targets.empty() && next.skip >= next.targets.front().size()) {
      next.skip -= next.targets.front().size();
      next.targets = next.targets.subspan(1);
    }
  }

  static bool continues(const transfer& into, uint64_t offset) {
    return !into.spans.empty() && into.spans.back().offset + into.spans.back().length == offset;
  }

  /// The transfer that the next piece goes to.
  transfer& open_transfer(uint64_t offset) {
    if (transfers_.empty() || transfers_.back()->length == limits::transfer_bytes
        || (transfers_.back()->spans.size() == limits::transfer_ranges
            && !continues(*transfers_.back(), offset)))
      transfers_.push_back(std::make_unique<transfer>());
    return *transfers_.back();
  }

  std::vector<transfer_ptr> transfers_;
};

struct server_connection {
  ucx_connection link;
  uint64_t last_use = 0;
};

/// What one call wants from one server.
struct stream {
  std::shared_ptr<server_connection> server;
  std::vector<transfer_ptr> messages;
  /// In flight are those from the first of these to before the second.
  size_t first = 0;
  size_t next = 0;
  /// When one of them ended last.
  time_point moved;
  /// Why the rest did not end; `none` while it may.
  error failure;

  bool is_open() const { return failure.code == ec::none && first != messages.size(); }
};

class ucx_page_client final : public page_client {
public:
  ucx_page_client(ucx_context context, ucx_worker worker)
    : context_(std::move(context)), worker_(std::move(worker)) {}

  ~ucx_page_client() override {
    servers_.clear();
    drain(worker_);
    // Ends what is pending, so the transfers go after it.
    worker_ = {};
  }

  result<void> open() { return receive_messages(worker_, page_reply_message, on_reply, this); }

  std::vector<std::vector<result<void>>> read(std::span<const server_read> reads,
                                              time_point deadline) override {
    const auto guard = std::lock_guard{mutex_};
    auto streams = std::vector<stream>(reads.size());
    for (auto i = size_t{0}; i < reads.size(); ++i)
      open(reads[i], streams[i]);
    run(streams, deadline);
    auto answers = std::vector<std::vector<result<void>>>{};
    for (auto i = size_t{0}; i < reads.size(); ++i)
      answers.push_back(close(reads[i], streams[i]));
    return answers;
  }

private:
  // -- callbacks of UCX, inside progress --------------------------------------

  static ucs_status_t on_reply(void* argument, const void* header, size_t header_length, void* data,
                               size_t length, const ucp_am_recv_param_t* param) {
    auto* self = static_cast<ucx_page_client*>(argument);
    auto reply = decode_page_reply({static_cast<const std::byte*>(header), header_length});
    if (!reply)
      return UCS_OK;
    const auto known = self->waiting_.find(reply->id);
    if (known == self->waiting_.end())
      return UCS_OK;
    auto& answered = *known->second;
    self->waiting_.erase(known);
    if (reply->refusal.code != ec::none)
      answered.end(reply->refusal.code, std::move(reply->refusal.detail));
    else if (length != answered.length)
      answered.end(ec::malformed_message, "the page server sent another number of bytes");
    else if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
      return self->fetch(answered, data);
    else {
      answered.scatter(static_cast<const std::byte*>(data));
      answered.end();
    }
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
    // One that read() gave up has no pieces any more: its targets are not ours to write to.
    if (status == UCS_OK) {
      x.scatter(x.staging.get());
      x.end();
    } else {
      x.end(ec::peer_unreachable, ucs_status_string(status));
    }
  }

  /// Begins to receive the bytes of a rendezvous.
  ucs_status_t fetch(transfer& into, void* descriptor) {
    into.staging = staging_.take();
    auto params = ucp_request_param_t{};
    params.op_attr_mask
      = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv_am = on_fetched;
    params.user_data = &into;
    ++into.pending;
    const auto status
      = ucp_am_recv_data_nbx(worker_.get(), descriptor, into.staging.get(), into.length, &params);
    if (UCS_PTR_IS_ERR(status)) {
      --into.pending;
      into.end(ec::peer_unreachable, ucs_status_string(UCS_PTR_STATUS(status)));
    }
    return UCS_INPROGRESS;
  }

  // -- internal steps ---------------------------------------------------------

  /// Prepares what is wanted from a server.
  void open(const server_read& wanted, stream& into) {
    auto builder = message_builder{};
    for (auto i = size_t{0}; i < wanted.ranges.size(); ++i)
      builder.add(i, wanted.ranges[i]);
    into.messages = builder.take();
    if (into.messages.empty())
      return;
    into.moved = std::chrono::steady_clock::now();
    std::erase_if(avoided_, [&](const auto& x) { return x.second <= into.moved; });
    if (avoided_.contains(wanted.address)) {
      into.failure = {ec::peer_unreachable, "it delivered nothing a moment ago"};
      return;
    }
    if (auto server = find_server(wanted.address))
      into.server = std::move(*server);
    else
      into.failure = server.error();
  }

  /// Does all transfers that can be done.
  void run(std::vector<stream>& streams, time_point deadline) {
    auto idle = 0;
    while (std::ranges::any_of(streams, &stream::is_open)) {
      const auto now = std::chrono::steady_clock::now();
      const auto left = std::max(deadline - now, duration::zero());
      auto pause = left;
      for (auto& each : streams) {
        if (!each.is_open())
          continue;
        if (each.server->link.failure != UCS_OK)
          each.failure = {ec::peer_unreachable, ucs_status_string(each.server->link.failure)};
        else if (left == left.zero())
          each.failure = {ec::deadline_exceeded, "it took too long"};
        else if (now - each.moved >= limits::read_stall)
          each.failure = {ec::peer_unreachable, "it delivers nothing"};
        else
          advance(each, now);
        pause = std::min(
          pause, std::max<duration>(each.moved + limits::read_stall - now, duration::zero()));
      }
      idle = ucp_worker_progress(worker_.get()) != 0 ? 0 : idle + 1;
      if (idle >= idle_turns) {
        static_cast<void>(
          wait_for_events(worker_, -1, std::chrono::ceil<std::chrono::milliseconds>(pause)));
        idle = 0;
      }
    }
  }

  /// Sends what may be in flight; forgets what has ended.
  void advance(stream& each, time_point now) {
    auto& [server, messages, first, next, moved, failure] = each;
    // In order, so that what is in flight is a window that only moves on.
    for (; first != next && messages[first]->ended; ++first, moved = now)
      staging_.give_back(std::move(messages[first]->staging));
    for (; next != messages.size() && next - first < limits::transfers_in_flight; ++next)
      send(server->link, *messages[next]);
  }

  /// @returns what became of each range
  std::vector<result<void>> close(const server_read& wanted, stream& ended) {
    auto answers = std::vector<result<void>>(wanted.ranges.size());
    if (const auto code = ended.failure.code;
        code == ec::peer_unreachable || code == ec::deadline_exceeded)
      // What is still under way must not be taken for an answer to a later call.
      servers_.erase(wanted.address);
    if (ended.failure.code == ec::peer_unreachable)
      avoided_.try_emplace(wanted.address,
                           std::chrono::steady_clock::now() + limits::read_avoidance);
    if (ended.failure.code != ec::none)
      ended.failure.detail = "reading from " + wanted.address + ": " + ended.failure.detail;
    for (auto& message : ended.messages) {
      const auto& outcome = message->ended ? message->failure : ended.failure;
      for (const auto& part : message->pieces)
        if (outcome.code != ec::none && answers[part.range])
          answers[part.range] = tl::unexpected{outcome};
      retire(std::move(message));
    }
    return answers;
  }

  void send(const ucx_connection& link, transfer& message) {
    message.head.id = ++last_id_;
    message.head.count = static_cast<uint32_t>(message.spans.size());
    waiting_.emplace(message.head.id, &message);
    auto params = ucp_request_param_t{};
    params.op_attr_mask
      = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    params.cb.send = on_sent;
    params.user_data = &message;
    params.flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER;
    const auto status = ucp_am_send_nbx(link.endpoint.get(), page_request_message, &message.head,
                                        sizeof(message.head), message.spans.data(),
                                        message.spans.size() * sizeof(page_span), &params);
    if (UCS_PTR_IS_PTR(status)) {
      ++message.pending;
    } else if (UCS_PTR_IS_ERR(status)) {
      waiting_.erase(message.head.id);
      message.end(ec::peer_unreachable, ucs_status_string(UCS_PTR_STATUS(status)));
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
    const auto parts = split_address(address);
    const auto at = parts ? resolve(parts->first, parts->second, AI_NUMERICHOST) : std::nullopt;
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
    message->pieces.clear();
    if (message->pending > 0)
      retired_.push_back(std::move(message));
  }

  std::mutex mutex_;
  ucx_context context_;
  /// Given up, but UCX still refers to them. Bounded: only a connection that is closed leaves any.
  std::vector<transfer_ptr> retired_;
  ucx_worker worker_;
  std::map<std::string, std::shared_ptr<server_connection>> servers_;
  /// Those that are not asked, and until when.
  std::map<std::string, time_point> avoided_;
  std::unordered_map<uint64_t, transfer*> waiting_;
  staging_pool staging_;
  uint64_t last_id_ = 0;
  uint64_t uses_ = 0;
};

} // namespace

page_client::~page_client() = default;

result<std::unique_ptr<page_client>> page_client::create() {
  auto context = make_ucx_context();
  if (!context)
    return tl::unexpected{context.error()};
  auto worker = make_ucx_worker(*context);
  if (!worker)
    return tl::unexpected{worker.error()};
  auto client = std::make_unique<ucx_page_client>(std::move(*context), std::move(*worker));
  if (auto opened = client->open(); !opened)
    return tl::unexpected{opened.error()};
  return client;
}

} // namespace hicache
