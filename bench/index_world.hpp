#pragma once

#include "bench/simulated_member.hpp"
#include "bench/simulated_shard.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace hicache::bench {

/// One way between two processes.
inline constexpr auto hop = duration{std::chrono::microseconds{100}};

/// What the members do all the time.
struct world_load {
  /// Batches of limits::storage_batch_pages that each member writes a second; as many pages are
  /// evicted for them.
  double writes_per_s = 1;
  /// Batches of limits::storage_batch_pages that each member looks up a second.
  double lookups_per_s = 10;
};

/// What readers saw since the last `take_reader_figures`.
struct reader_figures {
  uint64_t lookups = 0;
  uint64_t keys = 0;
  /// Keys of pages that a member holds and can be asked for, but that the index did not offer.
  uint64_t misses = 0;
  /// Keys of pages whose owner is dead or cut off, but that the index still offered.
  uint64_t stale = 0;
  /// Answers that name another place than the owner's.
  uint64_t wrong = 0;
  /// Keys that the other keeper was asked for as well.
  uint64_t asked_twice = 0;
  /// Requests of any kind that failed or took too long.
  uint64_t failed = 0;
  /// Lookups that waited in a shard's queue for more than 10 ms, and the longest wait.
  uint64_t late = 0;
  duration longest_wait{};

  friend bool operator==(const reader_figures&, const reader_figures&) = default;
};

/// Members, shards and the network between them in virtual time. Each acts as its actor does
/// (actors/segment.cpp, actors/index.cpp, backends/index_link.cpp), but that a member reports all
/// its pages to a shard that it lost, instead of resuming; what a shard keeps and what is said is
/// real.
class index_world {
public:
  index_world(uint32_t members, uint64_t pages_each, uint32_t shards, uint64_t seed,
              const world_load& load);

  /// Lets every member write as many pages as it has room for, before anything else happens.
  void fill();

  // -- time -------------------------------------------------------------------

  time_point now() const noexcept { return now_; }

  /// Lets things happen until the time is over, or `done` says so after one of them, or `stopped`.
  /// @returns whether `done` said so
  bool run(duration time, const std::function<bool()>& done = {});

  /// Looked at now and then; true ends every run.
  std::function<bool()> stopped;

  // -- what happens to it -----------------------------------------------------

  void set_loaded(bool loaded);

  /// The shard's process ends with all that it knows, and begins anew after a while.
  void restart_shard(uint32_t shard, duration down);

  /// One more shard joins. @pre there are fewer than limits::index_shards
  void add_shard();

  /// The member's process ends. Its connections close, or the shards hear nothing.
  void kill_member(uint32_t member, bool closes_connections);

  /// The members are reached by nobody, until they are again.
  void cut_off(uint32_t first, uint32_t count);

  void heal();

  // -- what can be seen -------------------------------------------------------

  const std::vector<simulated_member>& members() const noexcept { return members_; }

  std::deque<simulated_shard>& shards() noexcept { return shards_; }

  uint32_t shard_count() const noexcept { return static_cast<uint32_t>(shards_.size()); }

  /// The first shards, each in a process of its own.
  static shard_set first_shards(uint32_t count);

  /// Every living member is mounted at every shard, and no block report is under way.
  bool is_settled() const noexcept { return unsettled_ == 0; }

  /// Nobody waits for an answer, signs of life aside, and nothing is left to reap.
  bool is_quiet() const;

  /// When a block report ended last.
  time_point last_settled() const noexcept { return last_settled_; }

  /// When a shard noticed last that a member is gone, and when it had freed the last of what one
  /// left.
  time_point last_dropped() const noexcept { return last_dropped_; }

  time_point last_reaped() const noexcept { return last_reaped_; }

  reader_figures take_reader_figures() { return std::exchange(seen_, {}); }

private:
  enum class event_kind : uint8_t {
    // To a member.
    tick,
    write,
    written,
    ask,
    link,
    map,
    // To a message.
    arrive,
    answer,
    fail,
    // To a shard.
    poll,
    reap,
    gone,
    start,
    learn,
  };

  struct event {
    time_point at;
    uint64_t order = 0;
    event_kind kind = event_kind::tick;
    uint32_t a = 0;
    uint32_t b = 0;

    bool operator>(const event& x) const { return std::tie(at, order) > std::tie(x.at, x.order); }
  };

  struct message {
    message_kind kind = message_kind::beat;
    uint32_t member = 0;
    uint32_t shard = 0;
    /// Of the shard's process that it is meant for.
    uint32_t life = 0;
    uint64_t epoch = 0;
    /// Whose pages: of a lookup the owner, else the member.
    uint32_t owner = 0;
    std::vector<uint64_t> pages;
    time_point sent;
    /// A look-up that the other keepers were asked before.
    bool is_second_look = false;
    /// Of a look-up: what the shard does not know, and is not sure of.
    std::vector<uint64_t> doubtful;
    /// The answer.
    bool known = false;
    uint64_t shards_known = 0;
  };

  void at(time_point when, event_kind kind, uint32_t a, uint32_t b = 0);

  void happen(const event& x);

  // Members.
  void tick(uint32_t m);
  void look_at_index(uint32_t m);
  void reshard(uint32_t m);
  void mount(uint32_t m, uint32_t s);
  void report(uint32_t m, uint32_t s);
  void write(uint32_t m);
  void written(uint32_t m);
  void ask(uint32_t m);
  void link(uint32_t m, uint32_t s);
  void lose_link(uint32_t m, uint32_t s);
  void lose_mount(uint32_t m, uint32_t s);
  void heard(uint32_t m, uint64_t shards_known);
  std::vector<std::vector<uint64_t>> by_shard(uint32_t m, uint64_t first, uint64_t count) const;
  void tell(uint32_t m, uint32_t s, std::vector<uint64_t> pages);
  void ask_other(const message& x, const std::vector<uint64_t>& pages);
  void count_misses(uint32_t owner, size_t count);

  // Messages.
  void send(uint32_t m, uint32_t s, message_kind kind, std::vector<uint64_t> pages = {});
  uint32_t take_message();
  void arrive(uint32_t i);
  duration handle(message& x, time_point now);
  void locate(simulated_shard& at, message& x, time_point now);
  void answer(uint32_t i);
  void fail(uint32_t i);
  void give_back(uint32_t i);

  // Shards.
  void poll(uint32_t s);
  void reap(uint32_t s);
  /// Removes a slice of what members left, and goes on after other messages. @returns what it takes
  duration reap_some(uint32_t s);
  void member_gone(uint32_t s, uint32_t m);

  duration random_up_to(duration most);

  world_load load_;
  bool is_loaded_ = false;
  std::mt19937_64 random_;
  time_point now_{};
  uint64_t order_ = 0;
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
  std::deque<message> messages_;
  std::vector<uint32_t> free_messages_;
  /// Messages under way, signs of life aside, and writes that are not announced yet.
  uint64_t pending_ = 0;
  std::vector<simulated_member> members_;
  std::deque<simulated_shard> shards_;
  /// Mounts of living members that are missing or report.
  uint64_t unsettled_ = 0;
  time_point last_settled_{};
  time_point last_dropped_{};
  time_point last_reaped_{};
  reader_figures seen_;
  uint32_t last_sent_ = 0;
};

} // namespace hicache::bench
