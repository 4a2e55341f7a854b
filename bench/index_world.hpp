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

/// One way between two processes.
inline constexpr auto hop = duration{std::chrono::microseconds{100}};

/// Of a segment's looks at the index, and at what is left to repair (actors/segment.cpp).
inline constexpr auto tick_pause = duration{std::chrono::milliseconds{250}};

/// Of heartbeats, of a shard's look at its members, and of directories that tell each other.
inline constexpr auto beat_pause = duration{member_ttl / 4};

/// Pauses of a link that looks for a shard (backends/cluster/index_link.cpp).
inline constexpr auto link_pause_min = duration{std::chrono::milliseconds{50}};
inline constexpr auto link_pause_max = duration{std::chrono::seconds{1}};

/// From one event to the next.
duration every(double per_second);

/// What the members are, and what they do all the time.
struct world_load {
  /// Copies of each page, on different hosts. With more than one the members write nothing but what
  /// `fill` writes.
  uint32_t copies = 1;
  uint32_t members_per_host = 8;
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
  /// Keys of pages that the index offered at members alone that are dead or cut off.
  uint64_t stale = 0;
  /// Offers of a page where it is not and was not.
  uint64_t wrong = 0;
  /// Keys that the other keeper was asked for as well.
  uint64_t asked_twice = 0;
  /// Requests of any kind that failed or took too long.
  uint64_t failed = 0;
  /// Lookups that waited in a shard's queue for more than 10 ms, and the longest wait.
  uint64_t late = 0;
  duration longest_wait{};
  /// Questions for members, the longest of these lists and their answers, and routes to members
  /// that are alive that a reader gave up since no answer named them.
  uint64_t lists = 0;
  uint64_t longest_list = 0;
  uint64_t forgotten = 0;
  /// What shards were told in block reports.
  uint64_t reported = 0;
};

/// Copies made anew since the last `take_repair_figures`.
struct repair_figures {
  uint64_t pages = 0;
  /// Pages that lacked copies still when a try ended.
  uint64_t left_out = 0;
  time_point first;
  time_point last;
  /// Of the member whose pages were read most.
  uint64_t most_bytes = 0;
  /// By how many bytes a member was ahead of limits::repair_bytes_per_second.
  double most_ahead = 0;
};

/// Members, shards and the network between them in virtual time. Each acts as its actor does
/// (actors/segment.cpp, actors/spreader.cpp, actors/index.cpp, backends/cluster/index_link.cpp,
/// backends/cluster/page_reader.cpp), with the same tables, plans and progress; what a shard keeps
/// and what is said is real.
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

  /// The connections of these members end, and the shards hear of it.
  void disconnect(uint32_t first, uint32_t count);

  /// Has members ask for all members: some for the list, the others by id.
  /// @returns those that ask
  std::vector<uint32_t> list_all();

  // -- what can be seen -------------------------------------------------------

  const std::vector<simulated_member>& members() const noexcept { return members_; }

  std::deque<simulated_shard>& shards() noexcept { return shards_; }

  uint32_t shard_count() const noexcept { return static_cast<uint32_t>(shards_.size()); }

  /// The first shards, each in a process of its own.
  static shard_set first_shards(uint32_t count);

  /// Every living member is mounted at every shard, and no block report is under way.
  bool is_settled() const noexcept { return unsettled_ == 0; }

  /// Nobody waits for an answer, signs of life aside, and nothing is left to reap or to repair.
  bool is_quiet() const;

  /// Somebody has lost copies made anew, or is about to.
  bool is_repairing() const;

  /// What the index offers that is not there, or the other way around; what readers do not know of
  /// the members. @pre is_quiet()
  std::optional<std::string> difference(std::mt19937_64& random, int samples) const;

  /// The same for those that `list_all` had ask.
  std::optional<std::string> difference_of_lists(std::span<const uint32_t> asked) const;

  /// Pages of members that are reached which have fewer copies than they shall have, and more.
  std::pair<uint64_t, uint64_t> ill_copied() const;

  /// When a block report ended last.
  time_point last_settled() const noexcept { return last_settled_; }

  /// When a shard noticed last that a member is gone, and when it had freed the last of what one
  /// left.
  time_point last_dropped() const noexcept { return last_dropped_; }

  time_point last_expired() const noexcept { return last_expired_; }

  reader_figures take_reader_figures() { return std::exchange(seen_, {}); }

  repair_figures take_repair_figures();

private:
  enum class event_kind : uint8_t {
    // To a member.
    tick,
    write,
    written,
    ask,
    link,
    map,
    place,
    copied,
    spread,
    // To a message.
    arrive,
    answer,
    fail,
    // To a shard.
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

  /// Who asked, of questions that several parts of a member ask.
  enum class purpose : uint8_t { reading, placing, repairing };

  struct message {
    message_kind kind = message_kind::beat;
    purpose why = purpose::reading;
    uint32_t member = 0;
    uint32_t shard = 0;
    /// Of the shard's process that it is meant for, and the connection.
    uint32_t life = 0;
    uint32_t link = 0;
    uint64_t epoch = 0;
    uint64_t resumes = 0;
    std::vector<page_id> pages;
    time_point sent;
    /// A look-up that the other keepers were asked before.
    bool is_second_look = false;
    /// Of a report: where it goes on.
    uint64_t next_slot = 0;
    member_query query;
    /// Of repairing: where the pages are in its batch.
    std::vector<size_t> positions;
    /// The answer.
    bool known = false;
    bool resumed = false;
    uint64_t shards_known = 0;
    std::vector<page_key> lost;
    member_list listed;
    std::vector<replica_list> replicas;
    /// Of a look-up: what the shard does not know, and is not sure of; members that it named.
    std::vector<page_id> doubtful;
    std::set<uint64_t> offered;
  };

  /// Where a page is besides its writer.
  struct page_copy {
    uint32_t holder = 0;
    uint32_t place = 0;
  };

  void at(time_point when, event_kind kind, uint32_t a, uint32_t b = 0, uint32_t c = 0);

  void happen(const event& x);

  // Pages.
  std::array<uint8_t, 2> keepers(page_id id) const;
  bool holds(uint32_t m, page_id id) const;
  /// As a member announces a page that it holds or held. @returns nothing if it never did
  std::optional<announced_page> announced(uint32_t m, page_id id) const;
  /// How many members that are reached hold it.
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
  /// The connection has ended, and with it the mount.
  void lose_link(uint32_t m, uint32_t s);
  void heard(uint32_t m, uint64_t shards_known);
  std::vector<std::vector<page_id>> by_shard(uint32_t m, std::span<const page_id> pages) const;
  void tell(uint32_t m, uint32_t s, const std::vector<page_id>& pages);
  void withdraw_from(uint32_t m, uint32_t s, const std::vector<page_id>& pages);
  void unsettle(uint32_t m, uint32_t s, const std::vector<page_id>& pages);
  void tell_unsettled(uint32_t m, uint32_t s);
  /// Counts a mount that is told at once now, or was before.
  void note_told(bool before, const simulated_mount& here);

  // Readers.
  void ask(uint32_t m);
  void ask_other(const message& x, const std::vector<page_id>& pages);
  void count_misses(const std::vector<page_id>& pages);
  /// Which shard is asked for members after so many. Readers differ in whom they ask first.
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
  /// What who asked waits for the answer.
  static duration patience_of(const message& x);
  /// The network takes neither question nor answer now.
  void send_again(uint32_t i, event_kind what);
  void arrive(uint32_t i);
  duration handle(message& x, time_point now);
  void locate(simulated_shard& at, message& x, time_point now);
  void answer(uint32_t i);
  /// What an answer says of the member's mount.
  void apply_view(message& x);
  void fail(uint32_t i);
  void give_back(uint32_t i);

  // Shards.
  void poll(uint32_t s);
  void expire_replicas(uint32_t s);
  /// Removes a slice of what members left, and goes on after other messages. @returns what it takes
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
  /// Messages under way, signs of life aside, and writes that are not announced yet.
  uint64_t pending_ = 0;
  std::vector<simulated_member> members_;
  std::deque<simulated_shard> shards_;
  /// Mounts of living members that are missing or report.
  uint64_t unsettled_ = 0;
  time_point last_settled_{};
  time_point last_dropped_{};
  time_point last_expired_{};
  reader_figures seen_;
  absl::flat_hash_map<page_id, absl::InlinedVector<page_copy, 2>> copies_;
  /// Members that have copies made anew.
  uint64_t repairing_ = 0;
  repair_figures repaired_;
};

} // namespace hicache::bench
