#include "backends/redis/redis_client.hpp"

#include "backends/redis/redis_object.hpp"
#include "base/check.hpp"
#include "base/try.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Idle connections kept to one server: as many as a storage_queue has threads, and some more.
constexpr auto idle_links = size_t{16};

/// Value bytes that may be under way from one server. Redis buffers what is not received yet, so
/// this bounds the memory that it needs for us; it covers 100 Gbit/s at 0.6 ms.
constexpr auto window_bytes = uint64_t{8} << 20;

/// Requests under way to one server.
constexpr auto window_requests = size_t{256};

/// Times that a request is sent. A resharding takes two or three; more means that nodes disagree.
constexpr auto rounds = 12u;

/// Pause before a command for a slot that is being moved is repeated; doubles each time.
constexpr auto moving_pause = std::chrono::milliseconds{5};

constexpr auto no_master = UINT16_MAX;

/// The earlier of a moment and a time from now.
time_point at_most(time_point until, duration from_now) {
  return std::min(until, machine_time() + from_now);
}

redis_commands asking_command() {
  auto commands = redis_commands{};
  commands.add({"ASKING"});
  return commands;
}

} // namespace

/// Requests to one node, over one connection.
struct redis_client::lane {
  rpc::endpoint where;
  std::vector<attempt> attempts;
  std::unique_ptr<redis_link> link;
  bool is_reused = false;
  /// Attempts that were queued, and that were answered.
  size_t queued = 0;
  size_t answered = 0;
  uint64_t bytes_under_way = 0;
  /// To the first unanswered one.
  std::vector<redis_reply> replies;
  time_point last_progress{};
  /// Why it ended early.
  error trouble;

  bool is_open() const { return trouble.code == ec::none && answered < attempts.size(); }

  void end(error why) {
    trouble = std::move(why);
    link.reset();
  }

  /// Queues what the window has room for, and sends what can be sent.
  /// @returns whether anything was queued
  result<bool> send(std::span<redis_request> requests, const redis_commands& asking) {
    const auto before = queued;
    while (queued < attempts.size() && queued - answered < window_requests) {
      const auto& request = requests[attempts[queued].request];
      if (queued > answered && bytes_under_way + request.reply_bytes > window_bytes)
        break;
      if (attempts[queued].ask)
        link->queue(asking);
      link->queue(request.commands);
      bytes_under_way += request.reply_bytes;
      ++queued;
    }
    HICACHE_TRY(link->send());
    return queued > before;
  }

  /// Takes the replies that were received.
  result<void> take(std::span<redis_request> requests) {
    while (answered < queued) {
      const auto& at = attempts[answered];
      auto& request = requests[at.request];
      const auto skipped = size_t{at.ask ? 1u : 0u};
      auto sink = redis_reply_reader::string_sink{};
      if (request.on_value && replies.size() >= skipped)
        sink = [&](std::span<const std::byte> value) {
          request.on_value(replies.size() - skipped, value);
        };
      auto reply = HICACHE_TRY(link->next(sink));
      if (!reply)
        return {};
      replies.push_back(std::move(*reply));
      if (replies.size() < request.commands.count() + skipped)
        continue;
      replies.erase(replies.begin(), replies.begin() + static_cast<ptrdiff_t>(skipped));
      request.replies = std::exchange(replies, {});
      bytes_under_way -= request.reply_bytes;
      ++answered;
    }
    return {};
  }

  /// Does what can be done without waiting.
  result<void> advance(std::span<redis_request> requests, const redis_commands& asking,
                       time_point until) {
    while (is_open() && machine_time() < until) {
      const auto sent = HICACHE_TRY(send(requests, asking));
      const auto received = HICACHE_TRY(link->receive());
      HICACHE_TRY(take(requests));
      if (!sent && !received)
        return {};
      last_progress = machine_time();
    }
    return {};
  }
};

// -- connections --------------------------------------------------------------

redis_client::redis_client(redis_servers servers, redis_tls_context tls, const clock_source& clock)
  : servers_(std::move(servers)), tls_(std::move(tls)), clock_(clock), asking_(asking_command()),
    slots_(redis_slots, no_master) {}

result<std::unique_ptr<redis_client>> redis_client::open(redis_servers servers,
                                                         const clock_source& clock) {
  HICACHE_CHECK(!servers.servers.empty());
  auto tls = HICACHE_TRY(load_redis_tls(servers.access.tls));
  HICACHE_TRY(servers.access.password());
  const auto until = machine_time() + servers.timeout;
  auto client
    = std::unique_ptr<redis_client>{new redis_client{std::move(servers), std::move(tls), clock}};
  if (client->servers_.is_cluster) {
    HICACHE_TRY(client->read_slots(until));
    return client;
  }
  HICACHE_TRY(client->ping(clock.now() + client->servers_.timeout));
  return client;
}

time_point redis_client::machine_deadline(time_point deadline) const {
  if (deadline == time_point::max())
    return deadline;
  return machine_time() + (deadline - clock_.now());
}

result<std::unique_ptr<redis_link>> redis_client::borrow(const rpc::endpoint& where,
                                                         bool& is_reused, time_point until) {
  const auto name = to_string(where);
  {
    const auto lock = std::scoped_lock{mutex_};
    auto& node = nodes_[name];
    while (!node.idle.empty()) {
      auto link = std::move(node.idle.back());
      node.idle.pop_back();
      is_reused = true;
      if (!link->is_stale())
        return link;
    }
    if (clock_.now() < node.next_attempt)
      return tl::unexpected{node.last_failure};
  }
  is_reused = false;
  auto link
    = redis_link::open(where, servers_.access, tls_, at_most(until, servers_.connect_timeout));
  if (!link) {
    // That the caller had too little time is not the server's failure.
    if (link.error().code != ec::deadline_exceeded)
      note_failure(where, link.error());
    else if (machine_time() < until) {
      link.error().code = ec::peer_unreachable;
      note_failure(where, link.error());
    }
    return link;
  }
  const auto lock = std::scoped_lock{mutex_};
  nodes_[name].failures = 0;
  return link;
}

void redis_client::give_back(const rpc::endpoint& where, std::unique_ptr<redis_link> link) {
  const auto lock = std::scoped_lock{mutex_};
  auto& idle = nodes_[to_string(where)].idle;
  if (idle.size() < idle_links)
    idle.push_back(std::move(link));
}

void redis_client::note_failure(const rpc::endpoint& where, const error& why) {
  const auto lock = std::scoped_lock{mutex_};
  auto& node = nodes_[to_string(where)];
  const auto doublings = std::min(node.failures++, 16u);
  node.next_attempt
    = clock_.now() + std::min<duration>(redis_pause_max, redis_pause_min * (1 << doublings));
  node.last_failure = why;
  node.idle.clear();
  are_slots_stale_ = true;
}

result<std::vector<redis_reply>>
redis_client::ask(const rpc::endpoint& where, const redis_commands& commands, time_point until) {
  const auto limit = at_most(until, servers_.timeout);
  // The second time over a new connection, if the first one was old and broken.
  for (auto is_last = false;; is_last = true) {
    auto is_reused = false;
    auto link = HICACHE_TRY(borrow(where, is_reused, limit));
    auto replies = link->ask(commands, limit);
    if (replies)
      give_back(where, std::move(link));
    if (replies || !is_reused || is_last || machine_time() >= limit)
      return replies;
  }
}

result<void> redis_client::ping(time_point deadline) {
  auto commands = redis_commands{};
  commands.add({"PING"});
  const auto until = machine_deadline(deadline);
  if (servers_.is_cluster)
    HICACHE_TRY(read_slots(until));
  for (const auto& where : nodes())
    HICACHE_TRY(ask_node(where, commands, deadline));
  return {};
}

result<redis_reply> redis_client::ask_node(const rpc::endpoint& where,
                                           const redis_commands& command, time_point deadline) {
  auto replies = HICACHE_TRY(ask(where, command, machine_deadline(deadline)));
  if (replies.front().is_error())
    return tl::unexpected{error_of(replies.front(), to_string(where))};
  return std::move(replies.front());
}

// -- slots of a cluster -------------------------------------------------------

std::vector<rpc::endpoint> redis_client::nodes() {
  if (!servers_.is_cluster)
    return servers_.servers;
  const auto lock = std::scoped_lock{mutex_};
  return masters_;
}

uint16_t redis_client::number_of(const rpc::endpoint& master) {
  const auto found = std::ranges::find_if(masters_, [&](const rpc::endpoint& known) {
    return known.host == master.host && known.port == master.port;
  });
  const auto number = static_cast<uint16_t>(found - masters_.begin());
  if (found == masters_.end())
    masters_.push_back(master);
  return number;
}

bool redis_client::has_stale_slots() {
  const auto lock = std::scoped_lock{mutex_};
  return servers_.is_cluster && are_slots_stale_;
}

result<void> redis_client::read_slots(time_point until) {
  auto commands = redis_commands{};
  commands.add({"CLUSTER", "SLOTS"});
  auto asked = nodes();
  asked.insert(asked.end(), servers_.servers.begin(), servers_.servers.end());
  auto trouble = error{};
  for (const auto& where : asked) {
    const auto replies = ask(where, commands, until);
    if (!replies || replies->front().is_error()) {
      trouble = replies ? error_of(replies->front(), to_string(where)) : replies.error();
      continue;
    }
    const auto ranges = parse_slots(replies->front(), where);
    if (!ranges) {
      trouble = ranges.error();
      continue;
    }
    const auto lock = std::scoped_lock{mutex_};
    masters_.clear();
    std::ranges::fill(slots_, no_master);
    for (const auto& range : *ranges)
      std::fill(slots_.begin() + range.first, slots_.begin() + range.last + 1,
                number_of(range.master));
    are_slots_stale_ = false;
    return {};
  }
  return tl::unexpected{trouble};
}

result<rpc::endpoint> redis_client::node_of(const redis_request& request, const attempt& next) {
  if (next.ask)
    return *next.ask;
  if (!servers_.is_cluster)
    return servers_.servers.front();
  const auto lock = std::scoped_lock{mutex_};
  const auto master = slots_.at(request.slot);
  if (master == no_master)
    return fail(ec::peer_unreachable,
                "no node of the redis cluster serves slot " + std::to_string(request.slot));
  return masters_.at(master);
}

// -- requests -----------------------------------------------------------------

std::vector<redis_client::lane> redis_client::make_lanes(std::span<redis_request> requests,
                                                         const std::vector<attempt>& pending,
                                                         time_point until) {
  auto lanes = std::vector<lane>{};
  auto by_name = std::map<std::string, size_t>{};
  for (const auto& next : pending) {
    auto& request = requests[next.request];
    const auto where = node_of(request, next);
    if (!where) {
      request.replies = tl::unexpected{where.error()};
      continue;
    }
    const auto [at, is_new] = by_name.try_emplace(to_string(*where), lanes.size());
    if (is_new)
      lanes.emplace_back().where = *where;
    lanes[at->second].attempts.push_back(next);
  }
  for (auto& each : lanes) {
    auto link = borrow(each.where, each.is_reused, until);
    if (!link)
      each.end(link.error());
    else
      each.link = std::move(*link);
    each.last_progress = machine_time();
  }
  return lanes;
}

void redis_client::drive(std::vector<lane>& lanes, std::span<redis_request> requests,
                         time_point until) {
  while (true) {
    auto sockets = std::vector<pollfd>{};
    auto wake = until;
    for (auto& each : lanes) {
      if (each.is_open())
        if (auto advanced = each.advance(requests, asking_, until); !advanced) {
          if (!each.is_reused)
            note_failure(each.where, advanced.error());
          each.end(advanced.error());
        }
      if (!each.is_open())
        continue;
      const auto is_late = machine_time() >= until;
      if (is_late || machine_time() >= each.last_progress + servers_.timeout) {
        const auto late = "redis at " + to_string(each.where) + " does not answer";
        each.end({is_late ? ec::deadline_exceeded : ec::peer_unreachable, late});
        continue;
      }
      wake = std::min(wake, each.last_progress + servers_.timeout);
      const auto events = each.link->has_unsent() ? POLLIN | POLLOUT : POLLIN;
      sockets.push_back({each.link->socket(), static_cast<short>(events), 0});
    }
    if (sockets.empty())
      return;
    ::poll(sockets.data(), sockets.size(), poll_time(wake));
  }
}

/// Decides what becomes of a request after a round.
/// @returns whether, and where, to send it again
std::optional<redis_client::attempt> redis_client::again(const lane& from, size_t position,
                                                         std::span<redis_request> requests,
                                                         unsigned round) {
  const auto index = from.attempts[position].request;
  auto& request = requests[index];
  if (position >= from.answered) {
    request.replies = tl::unexpected{from.trouble};
    if (from.trouble.code == ec::deadline_exceeded || round > 0)
      return std::nullopt;
    const auto lock = std::scoped_lock{mutex_};
    are_slots_stale_ = true;
    return attempt{index, {}};
  }
  const auto refused = std::ranges::find_if(*request.replies, &redis_reply::is_error);
  if (refused == request.replies->end())
    return std::nullopt;
  if (is_passing(*refused))
    return from.attempts[position];
  const auto redirect = parse_redirect(refused->text, from.where);
  if (!redirect || !servers_.is_cluster)
    return std::nullopt;
  if (redirect->is_ask)
    return attempt{index, redirect->where};
  const auto lock = std::scoped_lock{mutex_};
  are_slots_stale_ = true;
  slots_.at(redirect->slot) = number_of(redirect->where);
  return attempt{index, {}};
}

void redis_client::run(std::span<redis_request> requests, time_point deadline) {
  const auto until = machine_deadline(deadline);
  auto pending = std::vector<attempt>{};
  for (auto i = size_t{0}; i < requests.size(); ++i)
    pending.push_back({i, {}});
  auto is_broken = true;
  for (auto round = 0u; !pending.empty() && round < rounds; ++round) {
    // After a MOVED its node is known. Without an answer the last known slots are as good as any.
    if (is_broken && has_stale_slots())
      static_cast<void>(read_slots(until));
    is_broken = false;
    auto lanes = make_lanes(requests, pending, until);
    drive(lanes, requests, until);
    pending.clear();
    auto is_moving = false;
    for (auto& each : lanes) {
      for (auto i = size_t{0}; i < each.attempts.size(); ++i)
        if (auto next = again(each, i, requests, round)) {
          const auto& replies = requests[next->request].replies;
          is_broken = is_broken || !replies;
          is_moving = is_moving || (replies && std::ranges::any_of(*replies, is_passing));
          pending.push_back(std::move(*next));
        }
      if (each.link)
        give_back(each.where, std::move(each.link));
    }
    if (is_moving)
      ::poll(nullptr, 0, poll_time(at_most(until, moving_pause * (1 << std::min(round, 8u)))));
  }
  for (const auto& left : pending)
    requests[left.request].replies
      = fail(ec::io_failure, "the nodes of the redis cluster disagree about slot "
                               + std::to_string(requests[left.request].slot));
}

} // namespace hicache
