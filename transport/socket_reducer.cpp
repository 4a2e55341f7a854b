#include "base/check.hpp"
#include "base/try.hpp"
#include "hicache/rank_reducer.hpp"
#include "transport/host_reductions.hpp"
#include "transport/rank_link.hpp"
#include "transport/rank_meeting.hpp"

#include <absl/strings/str_join.h>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace hicache {

namespace {

template <class T>
using per_channel = std::array<T, reduction_channel_count>;

/// Two lengths, then the values.
constexpr auto offer_bytes = 2 * sizeof(uint32_t) + rank_limits::values * sizeof(int64_t);

std::vector<std::byte> encode(const reduction_offer& offer) {
  const auto lengths = std::array{offer.shortest, offer.longest};
  const auto values = std::as_bytes(std::span{offer.values});
  auto body = std::vector<std::byte>(sizeof(lengths) + values.size());
  std::memcpy(body.data(), lengths.data(), sizeof(lengths));
  std::ranges::copy(values, body.begin() + sizeof(lengths));
  return body;
}

std::optional<reduction_offer> decode(std::span<const std::byte> body) {
  auto lengths = std::array<uint32_t, 2>{};
  if (body.size() < sizeof(lengths))
    return std::nullopt;
  std::memcpy(lengths.data(), body.data(), sizeof(lengths));
  const auto values = body.subspan(sizeof(lengths));
  const auto [shortest, longest] = lengths;
  const auto expected = shortest == longest && longest <= rank_limits::values ? longest : 0;
  if (values.size() != expected * sizeof(int64_t))
    return std::nullopt;
  auto offer = reduction_offer{shortest, longest, std::vector<int64_t>(expected)};
  std::ranges::copy(values, std::as_writable_bytes(std::span{offer.values}).begin());
  return offer;
}

/// Groups the ranks that share memory.
struct rank_hosts {
  explicit rank_hosts(const std::vector<rank_hello>& ranks) : of_rank(ranks.size()) {
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      const auto alike = std::ranges::find_if(members, [&](const auto& host) {
        return ranks[host.front()].process.machine == ranks[i].process.machine;
      });
      of_rank[i] = static_cast<uint32_t>(alike - members.begin());
      if (alike == members.end())
        members.push_back({i});
      else
        alike->push_back(i);
    }
  }

  /// Element r is the host of rank r.
  std::vector<uint32_t> of_rank;
  /// The ranks of each host, the lowest first. Host 0 is that of rank 0.
  std::vector<std::vector<uint32_t>> members;
};

/// Reduces among the hosts and detects lost ranks, over the connections between rank 0 and each
/// other rank. Any thread may call any function.
class rank_hub {
public:
  rank_hub(uint32_t rank, rank_meeting meeting, const rank_hosts& hosts)
    : rank_(rank), ranks_(std::move(meeting.ranks)), links_(std::move(meeting.links)),
      hosts_(hosts), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (const auto& link : links_)
      if (link)
        link->allow(std::max(offer_bytes, rank_limits::sentence_bytes));
    for (auto& one : rounds_)
      one.hosts.resize(hosts.members.size());
    thread_ = std::thread{[this] { serve(); }};
  }

  /// Notifies the others that this rank ends.
  ~rank_hub() {
    {
      const auto guard = std::lock_guard{mutex_};
      is_ending_ = true;
      for (const auto& link : links_)
        if (link) {
          link->send(rank_message::leaving, {});
          link->finish();
        }
    }
    wake();
    thread_.join();
  }

  /// Submits this host's offer.
  void offer(size_t channel, uint64_t number, reduction_offer mine) {
    const auto guard = std::lock_guard{mutex_};
    if (rank_ == 0) {
      take_offer(0, channel, number, std::move(mine));
    } else {
      links_.front()->send(rank_message::offer, encode(mine), static_cast<uint8_t>(channel),
                           number);
    }
    handle_all(); // A link may have been lost.
    wake_for_writing();
  }

  /// The result over all hosts, if complete; processes arrived messages first.
  std::optional<reduction_offer> take_minima(size_t channel, uint64_t number) {
    const auto guard = std::lock_guard{mutex_};
    auto& ended = minima_[channel];
    if (!ended) {
      auto sockets = to_poll();
      if (::poll(sockets.data(), sockets.size(), 0) > 0)
        pump();
    }
    if (!ended)
      return std::nullopt;
    auto [of, minima] = *std::exchange(ended, std::nullopt);
    if (of == number)
      return std::move(minima);
    fail_all(name_of(0) + " sent what no rank sends");
    return std::nullopt;
  }

  /// True once no further reduction can begin.
  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }

  /// The failure; empty if there is none.
  std::string failure() {
    const auto guard = std::lock_guard{mutex_};
    return failure_;
  }

  /// Whether rank 0 (this rank) has the host's offer to the reduction.
  bool has_offer(uint32_t host, size_t channel, uint64_t number) {
    const auto guard = std::lock_guard{mutex_};
    return rounds_[channel].number >= number || rounds_[channel].hosts[host];
  }

  const std::vector<rank_hello>& ranks() const noexcept { return ranks_; }

private:
  /// A reduction in progress.
  struct open_round {
    /// Of the last one that ended.
    uint64_t number = 0;
    std::vector<bool> hosts;
    uint32_t offered = 0;
    reduction_offer so_far;
  };

  void serve() {
    for (;;) {
      auto sockets = std::vector<pollfd>{};
      {
        const auto guard = std::lock_guard{mutex_};
        if (is_ending_)
          return;
        sockets = to_poll();
      }
      sockets.push_back({wake_.get(), POLLIN, 0});
      ::poll(sockets.data(), sockets.size(), -1);
      auto count = uint64_t{0};
      static_cast<void>(::read(wake_.get(), &count, sizeof(count)));
      const auto guard = std::lock_guard{mutex_};
      if (!is_ending_)
        pump();
    }
  }

  void wake() { ::eventfd_write(wake_.get(), 1); }

  // -- with the lock held -----------------------------------------------------

  /// No socket is closed before this object ends, so the descriptors stay valid.
  std::vector<pollfd> to_poll() const {
    auto sockets = std::vector<pollfd>{};
    for (const auto& link : links_)
      if (link && link->is_open())
        sockets.push_back({link->fd(), link->events(), 0});
    return sockets;
  }

  /// Makes the thread send what a socket did not accept.
  void wake_for_writing() {
    if (std::ranges::any_of(to_poll(), [](const pollfd& x) { return (x.events & POLLOUT) != 0; }))
      wake();
  }

  void pump() {
    for (const auto& link : links_)
      if (link)
        link->pump();
    handle_all();
  }

  /// Handles received messages and detects lost ranks. Other ranks than 0 have a link to 0 only.
  void handle_all() {
    for (uint32_t i = 0; i < links_.size(); ++i) {
      if (!links_[i])
        continue;
      while (const auto frame = links_[i]->next())
        if (!handle(i, *frame))
          fail_all(name_of(i) + " sent what no rank sends");
      if (!links_[i]->is_open())
        fail_all(name_of(i) + " is gone");
    }
  }

  std::string name_of(uint32_t rank) const {
    return "rank " + std::to_string(rank) + " (process " + std::to_string(ranks_[rank].process.pid)
           + ")";
  }

  /// @returns false if the message violates the protocol
  bool handle(uint32_t from, const rank_frame& frame) {
    switch (frame.kind) {
      case rank_message::leaving:
        fail_all(name_of(from) + " has ended");
        return true;
      case rank_message::failed:
        if (rank_ == 0)
          return false;
        fail_all({reinterpret_cast<const char*>(frame.body.data()), frame.body.size()});
        return true;
      case rank_message::offer:
      case rank_message::minima: {
        auto offer = decode(frame.body);
        if (!offer || frame.channel >= reduction_channel_count
            || (frame.kind == rank_message::offer) != (rank_ == 0))
          return false;
        if (rank_ == 0)
          return take_offer(hosts_.of_rank[from], frame.channel, frame.number, std::move(*offer));
        minima_[frame.channel] = {frame.number, std::move(*offer)};
        return true;
      }
      default:
        return false;
    }
  }

  bool take_offer(uint32_t host, size_t channel, uint64_t number, reduction_offer offer) {
    if (has_failed())
      return true; // The reduction has already ended with the failure.
    auto& round = rounds_[channel];
    if (number != round.number + 1 || round.hosts[host])
      return false;
    if (round.offered == 0)
      round.so_far = std::move(offer);
    else
      round.so_far.merge(offer.shortest, offer.longest, offer.values);
    round.hosts[host] = true;
    if (++round.offered < round.hosts.size())
      return true;
    const auto body = encode(round.so_far);
    for (const auto& link : links_)
      if (link)
        link->send(rank_message::minima, body, static_cast<uint8_t>(channel), number);
    minima_[channel] = {number, std::move(round.so_far)};
    round = {number, std::vector<bool>(round.hosts.size()), 0, {}};
    return true;
  }

  /// Keeps the first failure; rank 0 forwards it to the others.
  void fail_all(const std::string& why) {
    if (!failure_.empty())
      return;
    failure_ = why;
    has_failed_.store(true, std::memory_order_release);
    if (rank_ == 0)
      for (const auto& link : links_)
        if (link)
          link->send(rank_message::failed, std::as_bytes(std::span{why.data(), why.size()}));
  }

  const uint32_t rank_;
  const std::vector<rank_hello> ranks_;
  const std::vector<std::unique_ptr<rank_link>> links_;
  const rank_hosts& hosts_;
  const unique_fd wake_;
  std::mutex mutex_;
  bool is_ending_ = false;
  std::string failure_;
  std::atomic<bool> has_failed_ = false;
  /// At rank 0.
  per_channel<open_round> rounds_;
  /// Results not taken yet, with their numbers.
  per_channel<std::optional<std::pair<uint64_t, reduction_offer>>> minima_;
  std::thread thread_;
};

class socket_reducer final : public rank_reducer {
public:
  socket_reducer(uint32_t rank, rank_meeting meeting, host_reductions memory)
    : rank_(rank), size_(static_cast<uint32_t>(meeting.ranks.size())), hosts_(meeting.ranks),
      neighbours_(hosts_.members[hosts_.of_rank[rank]]),
      place_(static_cast<uint32_t>(std::ranges::find(neighbours_, rank) - neighbours_.begin())),
      memory_(std::move(memory)), hub_(rank, std::move(meeting), hosts_) {}

  ~socket_reducer() override {
    for (auto& channel : channels_)
      if (channel.done)
        std::exchange(channel.done, nullptr)(fail(ec::stopping));
  }

  uint32_t rank() const noexcept override { return rank_; }

  uint32_t size() const noexcept override { return size_; }

  void reduce_min(reduction_channel which, std::vector<int64_t> values, callback done) override {
    auto& channel = channels_.at(static_cast<size_t>(which));
    HICACHE_CHECK(done && !channel.done);
    channel.done = std::move(done);
    ++channel.number;
    if (hub_.has_failed())
      return;
    auto offer = memory_.enter(which, channel.number, place_,
                               static_cast<uint32_t>(neighbours_.size()), values);
    if (!offer)
      return;
    if (is_one_host())
      memory_.publish(which, channel.number, *offer);
    else
      hub_.offer(static_cast<size_t>(which), channel.number, std::move(*offer));
  }

  bool progress() override {
    auto outstanding = false;
    for (size_t i = 0; i < channels_.size(); ++i) {
      if (channels_[i].done)
        advance(i);
      outstanding |= static_cast<bool>(channels_[i].done);
    }
    return outstanding;
  }

  void on_notify(notify_callback) override {}

  std::string missing(reduction_channel which) override {
    if (auto failure = hub_.failure(); !failure.empty())
      return failure;
    const auto channel = static_cast<size_t>(which);
    const auto number = channels_.at(channel).number;
    auto names = std::vector<std::string>{};
    for (uint32_t place = 0; place < neighbours_.size(); ++place)
      if (!memory_.has_entered(which, number, place))
        names.push_back(describe(neighbours_[place]));
    if (names.empty() && rank_ > 0 && !is_one_host())
      return "a rank on another host has not arrived; rank 0 knows on which";
    for (uint32_t host = 1; rank_ == 0 && host < hosts_.members.size(); ++host)
      if (!hub_.has_offer(host, channel, number))
        names.push_back(describe_host(hosts_.members[host]));
    return names.empty() ? describe_lost(processes(), rank_) : absl::StrJoin(names, "; ");
  }

private:
  struct channel_state {
    /// Number of the last reduction that this rank entered.
    uint64_t number = 0;
    /// Set while it is outstanding.
    callback done;
  };

  bool is_one_host() const noexcept { return hosts_.members.size() == 1; }

  /// Calls the callback if the reduction has ended.
  void advance(size_t channel) {
    // Failure before minima: a reduction that completed before a rank was lost counts.
    const auto has_failed = hub_.has_failed();
    const auto number = channels_[channel].number;
    auto minima = is_one_host() ? memory_.published(static_cast<reduction_channel>(channel), number)
                                : hub_.take_minima(channel, number);
    if (!minima && !has_failed)
      return;
    // The callback may begin the next reduction, so mark the channel idle first.
    auto done = std::exchange(channels_[channel].done, nullptr);
    if (minima)
      done(std::move(*minima).outcome());
    else
      done(fail(ec::rank_unresponsive, hub_.failure()));
  }

  std::vector<rank_process> processes() const {
    auto all = std::vector<rank_process>{};
    for (const auto& rank : hub_.ranks())
      all.push_back(rank.process);
    return all;
  }

  std::string describe(uint32_t rank) const {
    const auto& process = hub_.ranks()[rank].process;
    const auto state = look_at(process);
    return "rank " + std::to_string(rank) + " (process " + std::to_string(process.pid)
           + (state == process_state::stopped ? ") is stopped"
              : state == process_state::gone  ? ") is gone"
                                              : ") has not arrived");
  }

  std::string describe_host(const std::vector<uint32_t>& members) const {
    if (members.size() == 1)
      return describe(members.front());
    return "one of ranks " + absl::StrJoin(members, ", ") + ", which share a host, has not arrived";
  }

  const uint32_t rank_;
  const uint32_t size_;
  const rank_hosts hosts_;
  /// The ranks of this host, and this rank's index among them.
  const std::vector<uint32_t>& neighbours_;
  const uint32_t place_;
  host_reductions memory_;
  rank_hub hub_;
  per_channel<channel_state> channels_;
};

template <size_t N>
bool fill(std::array<char, N>& to, const std::string& text) {
  if (text.size() >= N)
    return false;
  to = {};
  std::ranges::copy(text, to.begin());
  return true;
}

} // namespace

result<std::unique_ptr<rank_reducer>> make_socket_reducer(const socket_reducer_options& options) {
  if (options.size == 0 || options.size > rank_limits::ranks || options.rank >= options.size)
    return fail(ec::invalid_argument,
                "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size)
                  + " cannot be; expected up to " + std::to_string(rank_limits::ranks)
                  + " ranks, counted from 0");
  if (options.size == 1)
    return std::move(make_local_reducers(1).front());
  auto mine = rank_hello{};
  mine.rank = options.rank;
  mine.size = options.size;
  mine.process = rank_process::self();
  if (!fill(mine.job, options.job)
      || (!options.machine.empty() && !fill(mine.process.machine, options.machine)))
    return fail(ec::invalid_argument, "the name of a job or machine is too long");
  // Every rank creates memory; all but the first of their host release it.
  auto memory = HICACHE_TRY(host_reductions::create(options.size));
  mine.memory_fd = memory.fd();
  auto meeting = HICACHE_TRY(meet(options, mine));
  const auto hosts = rank_hosts{meeting.ranks};
  const auto& neighbours = hosts.members[hosts.of_rank[options.rank]];
  if (neighbours.front() == options.rank) {
    const auto ranks = static_cast<uint32_t>(neighbours.size());
    HICACHE_TRY(memory.reserve(ranks));
  } else {
    const auto& first = meeting.ranks[neighbours.front()];
    memory = HICACHE_TRY(host_reductions::attach(first.process, first.memory_fd, options.size));
  }
  return std::make_unique<socket_reducer>(options.rank, std::move(meeting), std::move(memory));
}

} // namespace hicache
