#pragma once

#include "bench/simulated_member.hpp"
#include "bench/simulated_shard.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace hicache::bench {

/// One-way network latency between two processes.
inline constexpr auto hop = duration{std::chrono::microseconds{100}};

/// How often a segment checks the index and pending repairs (actors/segment.cpp).
inline constexpr auto tick_pause = duration{std::chrono::milliseconds{250}};

/// Interval of heartbeats, of a shard's check of its members, and of exchanges between directories.
inline constexpr auto beat_pause = duration{member_ttl / 4};

/// Reconnection pauses of a link to a shard (backends/cluster/index_link.cpp).
inline constexpr auto link_pause_min = duration{std::chrono::milliseconds{50}};
inline constexpr auto link_pause_max = duration{std::chrono::seconds{1}};

/// Interval between events at that rate.
duration every(double per_second);

/// Members and their continuous load.
struct world_load {
  /// Replicas per page, on different hosts. With more than one, members write only in `fill`.
  uint32_t copies = 1;
  uint32_t members_per_host = 8;
  /// Batches of limits::storage_batch_pages per second that each member writes, and evicts.
  double writes_per_s = 1;
  /// Batches of limits::storage_batch_pages per second that each member looks up.
  double lookups_per_s = 10;
};

/// Counts of the readers since the last `take_reader_figures`.
struct reader_figures {
  uint64_t lookups = 0;
  uint64_t keys = 0;
  /// Keys that the index did not offer although a reachable member holds the page.
  uint64_t misses = 0;
  /// Keys offered only at members that are dead or partitioned.
  uint64_t stale = 0;
  /// Offers with a location at which the page is not and was not.
  uint64_t wrong = 0;
  /// Keys that were also looked up at the second keeper.
  uint64_t asked_twice = 0;
  /// Requests of any kind that failed or timed out.
  uint64_t failed = 0;
  /// Lookups that waited longer than 10 ms in a shard's queue, and the longest wait.
  uint64_t late = 0;
  duration longest_wait{};
  /// Member queries, the longest list in one, and routes to living members that readers dropped.
  uint64_t lists = 0;
  uint64_t longest_list = 0;
  uint64_t forgotten = 0;
  /// Pages in block reports.
  uint64_t reported = 0;
};

/// Replicas recreated since the last `take_repair_figures`.
struct repair_figures {
  uint64_t pages = 0;
  /// Pages still short of replicas when an attempt ended.
  uint64_t left_out = 0;
  time_point first;
  time_point last;
  /// Bytes read from the busiest member.
  uint64_t most_bytes = 0;
  /// Maximum bytes by which a member exceeded repair_policy::bytes_per_second.
  double most_ahead = 0;
};

/// Members, shards and their network in virtual time. Each follows its actor (actors/segment.cpp,
/// actors/spreader.cpp, actors/index.cpp, backends/cluster/index_link.cpp,
/// backends/cluster/page_reader.cpp) and uses the same tables, plans and progress; the contents of
/// shards and messages are real.
class index_world {
public:
  index_world(uint32_t members, uint64_t pages_each, uint32_t shards, uint64_t seed,
              const world_load& load);

  /// Fills every member with pages before anything else happens.
  void fill();

  // -- time -------------------------------------------------------------------

  time_point now() const noexcept { return now_; }

  /// Processes events until `time` has passed, or `done` (checked after each) or `stopped` is true.
  /// @returns whether `done` returned true
  bool run(duration time, const std::function<bool()>& done = {});

  /// Polled periodically; true ends every run.
  std::function<bool()> stopped;

  // -- operations -------------------------------------------------------------

  void set_loaded(bool loaded);

  /// The shard's process ends, loses its state and restarts after `down`.
  void restart_shard(uint32_t shard, duration down);

  /// @pre there are fewer than limits::index_shards
  void add_shard();

  /// The member's process ends. Its connections close, or the shards get no notification.
  void kill_member(uint32_t member, bool closes_connections);

  /// Partitions the members from the network until heal().
  void cut_off(uint32_t first, uint32_t count);

  void heal();

  /// Closes the connections of these members; the shards are notified.
  void disconnect(uint32_t first, uint32_t count);

  /// @returns the members that it makes query all members: the list, and each by id
  std::vector<uint32_t> list_all();

  // -- observations -----------------------------------------------------------

  const std::vector<simulated_member>& members() const noexcept { return members_; }

  std::deque<simulated_shard>& shards() noexcept { return shards_; }

  uint32_t shard_count() const noexcept { return static_cast<uint32_t>(shards_.size()); }

  /// The first shards, each in a process of its own.
  static shard_set first_shards(uint32_t count);

  /// True if every living member is mounted at every shard and no block report is in progress.
  bool is_settled() const noexcept { return unsettled_ == 0; }

  /// True if only heartbeats are outstanding, and nothing is left to expire or repair.
  bool is_quiet() const;

  /// True if a member is recreating lost replicas or is about to.
  bool is_repairing() const;

  /// Describes the first difference between the index and what the members hold, or a living member
  /// that a reader was offered but does not know.
  /// @pre is_quiet()
  std::optional<std::string> difference(std::mt19937_64& random, int samples) const;

  /// The same for the members returned by `list_all`.
  std::optional<std::string> difference_of_lists(std::span<const uint32_t> asked) const;

  /// Pages of reachable members with too few replicas, and with too many.
  std::pair<uint64_t, uint64_t> ill_copied() const;

  /// End of the last block report.
  time_point last_settled() const noexcept { return last_settled_; }

  /// When a shard last dropped a member, and when it last freed a dropped member's entries.
  time_point last_dropped() const noexcept { return last_dropped_; }

  time_point last_expired() const noexcept { return last_expired_; }

  reader_figures take_reader_figures() { return std::exchange(seen_, {}); }

  repair_figures take_repair_figures();

private:
  enum class event_kind : uint8_t {
    // Events of a member.
    tick,
    write,
    written,
    ask,
    link,
    map,
    place,
    copied,
    spread,
    // Events of a message.
    arrive,
    answer,
    fail,
    // Events of a shard.
    poll,
    expire_replicas,
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
    uint32_t c = 0;

    bool operator>(const event& x) const { return std::tie(at, order) > std::tie(x.at, x.order); }
  };

  /// Origin of a query that several parts of a member send.
  enum class purpose : uint8_t { reading, placing, repairing };

  struct message {
    message_kind kind = message_kind::beat;
    purpose why = purpose::reading;
    uint32_t member = 0;
    uint32_t shard = 0;
    /// Process of the addressed shard, and connection.
    uint32_t life = 0;
    uint32_t link = 0;
    uint64_t epoch = 0;
    uint64_t resumes = 0;
    std::vector<page_id> pages;
    time_point sent;
    /// A lookup sent to the second keepers.
    bool is_second_look = false;
    /// Of a report: where it continues.
    uint64_t next_slot = 0;
    member_query query;
    /// Of a repair: positions of the pages in its batch.
    std::vector<size_t> positions;
    /// Answer.
    bool known = false;
    bool resumed = false;
    uint64_t shards_known = 0;
    std::vector<page_key> lost;
    member_list listed;
    std::vector<replica_list> replicas;
    /// Of a lookup: pages about which the shard is not sure, and members in its answer.
    std::vector<page_id> doubtful;
    std::set<uint64_t> offered;
  };

  /// Location of a replica on a member other than the page's writer.
  struct page_copy {
    uint32_t holder = 0;
    uint32_t place = 0;
  };

  void at(time_point when, event_kind kind, uint32_t a, uint32_t b = 0, uint32_t c = 0);

  void happen(const event& x);

  // Pages.
  std::array<uint8_t, 2> keepers(page_id id) const;
  bool holds(uint32_t m, page_id id) const;
  /// The page as announced by a member that holds or held it; nothing if it never did.
  std::optional<announced_page> announced(uint32_t m, page_id id) const;
  /// Number of reachable members that hold it.
  size_t holders(page_id id) const;
  void add_copy(uint32_t m, page_id id);
  void fill_copies();

  // Members.
  void tick(uint32_t m);
  void look_at_index(uint32_t m);
  void reshard(uint32_t m);
  void mount(uint32_t m, uint32_t s);
  void report(uint32_t m, uint32_t s);
  void write(uint32_t m);
  void written(uint32_t m);
  void link(uint32_t m, uint32_t s);
  /// The connection has ended, and the mount with it.
  void lose_link(uint32_t m, uint32_t s);
  void heard(uint32_t m, uint64_t shards_known);
  std::vector<std::vector<page_id>> by_shard(uint32_t m, std::span<const page_id> pages) const;
  void tell(uint32_t m, uint32_t s, const std::vector<page_id>& pages);
  void withdraw_from(uint32_t m, uint32_t s, const std::vector<page_id>& pages);
  void unsettle(uint32_t m, uint32_t s, const std::vector<page_id>& pages);
  void tell_unsettled(uint32_t m, uint32_t s);
  /// Updates `unsettled_` after a mount has changed.
  void note_told(bool before, const simulated_mount& here);

  // Readers.
  void ask(uint32_t m);
  void ask_other(const message& x, const std::vector<page_id>& pages);
  void count_misses(const std::vector<page_id>& pages);
  /// Shard for member queries after `tried` failures. Readers start at different shards.
  std::optional<uint32_t> next_shard(uint32_t m, uint32_t& tried) const;
  void find_routes(uint32_t m, const std::set<uint64_t>& offered);
  void ask_routes(uint32_t m);
  void heard_routes(message& x, bool failed);
  void ask_part(uint32_t m);
  void end_routes(uint32_t m);
  void place(uint32_t m);
  void list_members(uint32_t m, purpose why);
  void ask_list(uint32_t m, purpose why, uint64_t from);
  void heard_list(message& x, bool failed);
  simulated_listing& listing(uint32_t m, purpose why);

  // Repair.
  void repair(uint32_t m);
  void next_batch(uint32_t m);
  void find_holders(uint32_t m);
  void enter_holders(message& x, bool failed);
  void next_round(uint32_t m);
  void copied(uint32_t source, uint32_t target);
  void note_repair(uint32_t source, uint64_t pages);

  // Messages.
  message& send(uint32_t m, uint32_t s, message_kind kind, std::vector<page_id> pages = {});
  uint32_t take_message();
  /// Timeout of a request.
  static duration patience_of(const message& x);
  /// Schedules a retransmission of a request or an answer that the network cannot deliver.
  void send_again(uint32_t i, event_kind what);
  void arrive(uint32_t i);
  duration handle(message& x, time_point now);
  void locate(simulated_shard& at, message& x, time_point now);
  void answer(uint32_t i);
  /// Applies an answer to the member's mount.
  void apply_view(message& x);
  void fail(uint32_t i);
  void give_back(uint32_t i);

  // Shards.
  void poll(uint32_t s);
  void expire_replicas(uint32_t s);
  /// Removes a batch of dropped members' entries and schedules the next; returns the time needed.
  duration expire_some_replicas(uint32_t s);
  void member_gone(uint32_t s, uint32_t m, uint32_t link);

  std::optional<std::string> difference_of_counts() const;
  std::optional<std::string> difference_of_routes() const;

  duration random_up_to(duration most);

  world_load load_;
  bool is_loaded_ = false;
  std::mt19937_64 random_;
  time_point now_{};
  uint64_t order_ = 0;
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
  std::deque<message> messages_;
  std::vector<uint32_t> free_messages_;
  /// Number of messages in flight, except heartbeats, and of writes not yet announced.
  uint64_t pending_ = 0;
  std::vector<simulated_member> members_;
  std::deque<simulated_shard> shards_;
  /// Number of mounts of living members that are missing or still reporting.
  uint64_t unsettled_ = 0;
  time_point last_settled_{};
  time_point last_dropped_{};
  time_point last_expired_{};
  reader_figures seen_;
  absl::flat_hash_map<page_id, absl::InlinedVector<page_copy, 2>> copies_;
  /// Number of members that are recreating replicas.
  uint64_t repairing_ = 0;
  repair_figures repaired_;
};

} // namespace hicache::bench
