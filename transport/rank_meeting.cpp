#include "transport/rank_meeting.hpp"

#include "base/try.hpp"
#include "transport/rank_sockets.hpp"

#include <absl/strings/str_join.h>
#include <spdlog/spdlog.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace hicache {

namespace {

using meeting_clock = std::chrono::steady_clock;

std::string text_of(const rank_frame& frame) {
  return {reinterpret_cast<const char*>(frame.body.data()), frame.body.size()};
}

/// Polls the sockets, at most until `until`.
void wait_for(std::vector<pollfd>& sockets, meeting_clock::time_point until) {
  const auto left
    = std::chrono::ceil<std::chrono::milliseconds>(until - meeting_clock::now()).count();
  ::poll(sockets.data(), sockets.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
}

pollfd of(const rank_link& link) {
  return {link.fd(), link.events(), 0};
}

// -- rank 0 -------------------------------------------------------------------

/// Rank 0 while the other ranks connect.
class open_meeting {
public:
  open_meeting(const socket_reducer_options& options, const rank_hello& mine,
               rank_listener listener)
    : options_(options), listener_(std::move(listener)), mine_(mine) {
    found_.ranks.resize(options.size);
    found_.links.resize(options.size);
    found_.ranks.front() = mine;
  }

  result<rank_meeting> wait() {
    const auto end = meeting_clock::now() + options_.timeout;
    while (!absent().empty()) {
      if (meeting_clock::now() >= end)
        return give_up();
      auto sockets = std::vector<pollfd>{{listener_.fd(), POLLIN, 0}};
      for (const auto& one : unknown_)
        sockets.push_back(of(*one.link));
      for (const auto& link : found_.links)
        if (link)
          sockets.push_back(of(*link));
      wait_for(sockets, unknown_.empty() ? end : std::min(end, unknown_.front().until));
      accept_all();
      look_at_unknown();
      look_at_known();
    }
    auto everyone = std::as_bytes(std::span{found_.ranks});
    for (const auto& link : found_.links)
      if (link)
        link->send(rank_message::all_here, everyone);
    return std::move(found_);
  }

private:
  struct unknown_peer {
    std::unique_ptr<rank_link> link;
    std::string name;
    /// Deadline for its hello.
    meeting_clock::time_point until;
  };

  std::vector<uint32_t> absent() const {
    auto ranks = std::vector<uint32_t>{};
    for (uint32_t i = 1; i < options_.size; ++i)
      if (!found_.links[i])
        ranks.push_back(i);
    return ranks;
  }

  tl::unexpected<error> give_up() {
    const auto why = "not all ranks of the instance have started: of "
                     + std::to_string(options_.size) + ", rank " + absl::StrJoin(absent(), ", ")
                     + " has not come to " + place_of(options_) + " in time";
    for (const auto& link : found_.links)
      if (link) {
        link->send(rank_message::failed, std::as_bytes(std::span{why}));
        link->finish();
      }
    return fail(ec::rank_unresponsive, why);
  }

  void accept_all() {
    const auto room = options_.size + rank_limits::unknown_peers;
    for (size_t i = 0; i < room; ++i) {
      auto [socket, name] = listener_.accept();
      if (!socket)
        return;
      if (unknown_.size() == room)
        drop(0, "others wait behind it");
      unknown_.push_back({std::make_unique<rank_link>(std::move(socket), options_.tls.get(), true,
                                                      sizeof(rank_hello)),
                          std::move(name), meeting_clock::now() + rank_limits::hello_time});
    }
  }

  void drop(size_t which, const std::string& why) {
    if (++dropped_ <= rank_limits::told_strangers)
      spdlog::warn("a connection of {} to {}, where ranks meet, is closed: {}",
                   unknown_[which].name, place_of(options_), why);
    unknown_[which].link->finish();
    unknown_.erase(unknown_.begin() + static_cast<ptrdiff_t>(which));
  }

  void look_at_unknown() {
    for (size_t i = 0; i < unknown_.size();) {
      auto& link = *unknown_[i].link;
      link.pump();
      if (const auto frame = link.next()) {
        if (const auto why = admit(i, *frame); !why.empty()) {
          link.send(rank_message::refused, std::as_bytes(std::span{why}));
          drop(i, why);
        } else {
          unknown_.erase(unknown_.begin() + static_cast<ptrdiff_t>(i));
        }
      } else if (!link.is_open()) {
        drop(i, link.reason().empty() ? "it did not say who it is" : link.reason());
      } else if (meeting_clock::now() >= unknown_[i].until) {
        drop(i, "it did not say in time who it is");
      } else {
        ++i;
      }
    }
  }

  /// Admits a rank by its first message.
  /// @returns why it was refused; empty if admitted
  std::string admit(size_t which, const rank_frame& frame) {
    auto hello = rank_hello{};
    if (frame.kind != rank_message::hello || frame.body.size() != sizeof(hello))
      return "it said something else than who it is";
    std::memcpy(&hello, frame.body.data(), sizeof(hello));
    hello.job.back() = '\0';
    hello.process.machine.back() = '\0';
    const auto rank = "rank " + std::to_string(hello.rank);
    if (hello.magic != mine_.magic || hello.version != mine_.version)
      return "it is no rank of this version of hicache";
    if (hello.job != mine_.job)
      return rank + " is of the job '" + hello.job.data() + "', rank 0 of '" + mine_.job.data()
             + "'; expected the same on every rank";
    if (hello.size != mine_.size)
      return rank + " was started as one of " + std::to_string(hello.size)
             + " ranks, rank 0 as one of " + std::to_string(mine_.size)
             + "; expected the same on every rank";
    if (hello.rank == 0 || hello.rank >= mine_.size || found_.links[hello.rank])
      return rank + " is there already; expected each rank from 0 to "
             + std::to_string(mine_.size - 1) + " once";
    found_.ranks[hello.rank] = hello;
    found_.links[hello.rank] = std::move(unknown_[which].link);
    return {};
  }

  /// Drops ranks that ended before all have connected; they may be restarted.
  void look_at_known() {
    for (auto& link : found_.links) {
      if (!link)
        continue;
      link->pump();
      if (link->next() || !link->is_open())
        link.reset();
    }
  }

  const socket_reducer_options& options_;
  rank_listener listener_;
  const rank_hello& mine_;
  /// Oldest first.
  std::vector<unknown_peer> unknown_;
  uint64_t dropped_ = 0;
  rank_meeting found_;
};

// -- the others ---------------------------------------------------------------

/// Outcome of one connection to rank 0: all ranks, a permanent error, or empty to try again.
using attempt = std::optional<result<rank_meeting>>;

attempt understand(const rank_frame& frame, const socket_reducer_options& options,
                   std::unique_ptr<rank_link>& link) {
  if (frame.kind == rank_message::refused)
    return fail(ec::invalid_argument, text_of(frame));
  if (frame.kind == rank_message::failed)
    return fail(ec::rank_unresponsive, text_of(frame));
  if (frame.kind != rank_message::all_here
      || frame.body.size() != options.size * sizeof(rank_hello))
    return std::nullopt;
  auto found = rank_meeting{};
  found.ranks.resize(options.size);
  std::memcpy(found.ranks.data(), frame.body.data(), frame.body.size());
  found.links.push_back(std::move(link));
  return found;
}

attempt introduce(unique_fd socket, const socket_reducer_options& options, const rank_hello& mine,
                  std::string& why) {
  const auto most = std::max(options.size * sizeof(rank_hello), rank_limits::sentence_bytes);
  auto link = std::make_unique<rank_link>(std::move(socket), options.tls.get(), false, most);
  link->send(rank_message::hello, std::as_bytes(std::span{&mine, 1}));
  // Rank 0 reports its own timeout; it may have started up to this rank's timeout later.
  const auto end = meeting_clock::now() + 2 * options.timeout;
  while (meeting_clock::now() < end) {
    link->pump();
    if (const auto frame = link->next())
      return understand(*frame, options, link);
    if (!link->is_open()) {
      why = link->reason().empty() ? "it closed the connection" : link->reason();
      if (why.starts_with("TLS"))
        return fail(ec::invalid_argument, "rank 0 at " + place_of(options) + ": " + why);
      return std::nullopt;
    }
    auto sockets = std::vector<pollfd>{of(*link)};
    wait_for(sockets, end);
  }
  return fail(ec::rank_unresponsive, "not all ranks of the instance have started: rank 0 at "
                                       + place_of(options) + " does not say that all are there");
}

result<rank_meeting> join(const socket_reducer_options& options, const rank_hello& mine) {
  const auto end = meeting_clock::now() + options.timeout;
  auto why = std::string{};
  do {
    auto socket = connect_to_rank(options, end);
    if (!socket)
      why = socket.error().detail;
    else if (auto outcome = introduce(std::move(*socket), options, mine, why))
      return std::move(*outcome);
    std::this_thread::sleep_for(rank_limits::connect_pause);
  } while (meeting_clock::now() < end);
  return fail(ec::rank_unresponsive, "not all ranks of the instance have started: rank 0 is not at "
                                       + place_of(options) + " (" + why + ")");
}

} // namespace

result<rank_meeting> meet(const socket_reducer_options& options, const rank_hello& mine) {
  if (options.rank > 0)
    return join(options, mine);
  auto listener = HICACHE_TRY(rank_listener::open(options));
  return open_meeting{options, mine, std::move(listener)}.wait();
}

} // namespace hicache
