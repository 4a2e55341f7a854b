#include "bench/index_simulation.hpp"

#include "base/limits.hpp"
#include "bench/index_world.hpp"
#include "messages/page_header.hpp"
#include "messages/shard_map.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <utility>

namespace hicache::bench {

namespace {

using namespace std::chrono_literals;

/// Time limit for the index to converge in a phase; many times the expected time.
constexpr auto patience = duration{10min};

/// Time without unsettled mounts that counts as converged; exceeds the members' check interval.
constexpr auto calm = duration{3s};

/// Minimum length of a phase, so that it contains lookups.
constexpr auto watch_time = duration{1s};

constexpr auto steady_time = duration{5s};
constexpr auto restart_time = duration{2s};
constexpr auto partition_time = duration{member_ttl + 5s};

/// Including the heartbeat before and the reconnection after, still shorter than member_ttl.
constexpr auto short_partition_time = duration{6s};

/// Members on a host with eight GPUs.
constexpr auto crowded_host = uint32_t{8};

constexpr auto least_members = uint32_t{10};

/// Number of sampled pages per check.
constexpr auto samples = 20'000;

/// Highest load of a shard, as a share of a core, at which its queue stays short.
constexpr auto most_load = 0.7;

double seconds(duration time) {
  return std::chrono::duration<double>(time).count();
}

double milliseconds(duration time) {
  return 1e3 * seconds(time);
}

/// Resident memory of this process; 0 if unknown.
double resident_bytes() {
  auto total = uint64_t{0};
  auto resident = uint64_t{0};
  std::ifstream{"/proc/self/statm"} >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

class simulation {
public:
  /// @param title Prefix of the phase names.
  simulation(const simulation_options& options, const world_load& load,
             const simulation_hooks& hooks, std::string title)
    : options_(options), hooks_(hooks), pages_each_(options.keys / options.members),
      copies_(load.copies), resident_before_(resident_bytes()),
      world_(options.members, pages_each_, options.shards, options.seed, load),
      random_(options.seed + 1), title_(std::move(title)) {
    world_.stopped = hooks.is_stopped;
  }

  /// Phases with each page on one member.
  result<simulation_report> of_index() {
    return run({&simulation::start, &simulation::steady, &simulation::restart, &simulation::close,
                &simulation::silence, &simulation::join, &simulation::disconnect,
                &simulation::short_partition, &simulation::partition});
  }

  /// Phases with each page on two members.
  result<simulation_report> of_copies() {
    return run({&simulation::start, &simulation::steady, &simulation::disconnect,
                &simulation::lose_one, &simulation::lose_two});
  }

private:
  using phase = result<void> (simulation::*)();

  result<simulation_report> run(std::initializer_list<phase> phases) {
    for (const auto step : phases)
      if (auto done = (this->*step)(); !done)
        return tl::unexpected{done.error()};
    return std::move(report_);
  }

  // -- phases -----------------------------------------------------------------

  /// Every member mounts and reports all its pages.
  result<void> start() {
    begin("start");
    world_.fill();
    const auto of_members = resident_bytes();
    if (auto whole = settle(); !whole)
      return whole;
    simulated("all keys offered after", seconds(world_.last_settled() - began_), "s");
    auto memory = uint64_t{0};
    for (const auto& shard : world_.shards())
      memory += shard.table.memory_bytes();
    const auto keys = static_cast<double>(pages_each_ * options_.members * copies_);
    const auto name = std::string{copies_ == 1 ? "memory per key: " : "memory per copy: "};
    simulated(name + "index_table::memory_bytes", static_cast<double>(memory) / keys, "B");
    if (copies_ == 1) { // Later runs reuse freed memory.
      measured(name + "resident", (resident_bytes() - of_members) / keys, "B");
      measured("memory of the simulated members", (of_members - resident_before_) / 1e6, "MB");
    }
    measure_kind(message_kind::report);
    measure_kind(message_kind::mount);
    return check();
  }

  /// Continuous load of the shards.
  result<void> steady() {
    begin("steady");
    auto worked = duration{};
    auto most = duration{};
    for (auto& shard : world_.shards()) {
      shard.figures = {};
      shard.worked = {};
    }
    world_.run(steady_time);
    for (const auto& shard : world_.shards()) {
      worked += shard.worked;
      most = std::max(most, shard.worked);
    }
    show_traffic();
    const auto load = seconds(worked) / seconds(steady_time) / options_.shards;
    simulated("a shard is busy", 100 * load, "%");
    simulated("the busiest shard is busy", 100 * seconds(most) / seconds(steady_time), "%");
    if (copies_ == 1)
      simulated("members that shards can serve, at 70 % of a core each",
                std::floor(options_.members * most_load / load), "");
    show_readers();
    return check();
  }

  result<void> restart() {
    begin("restart of a shard");
    world_.restart_shard(0, restart_time);
    return converge(restart_time);
  }

  result<void> close() {
    begin("a member's connection closes");
    world_.kill_member(1 % options_.members, true);
    return forget();
  }

  result<void> silence() {
    begin("a member falls silent");
    world_.kill_member(2 % options_.members, false);
    return forget();
  }

  result<void> join() {
    begin("a shard joins");
    const auto before = world_.first_shards(world_.shard_count());
    world_.add_shard();
    const auto converged = converge({});
    if (!converged)
      return converged;
    auto moved = uint64_t{0};
    for (const auto& who : world_.members())
      if (who.fate == member_fate::alive)
        for (auto page = who.pages.first(); page < who.pages.last(); ++page)
          moved += std::ranges::count(who.pages.keepers(page), before.numbers.size()) != 0 ? 1 : 0;
    simulated("keys that the new shard keeps", static_cast<double>(moved), "");
    simulated("share of all keys", 100.0 * static_cast<double>(moved) / held(), "%");
    simulated("keys that moved elsewhere", static_cast<double>(strays(before)), "");
    return strays(before) == 0
             ? result<void>{}
             : fail(ec::corrupt_page, "keys moved between shards that were there");
  }

  /// Connections end on both sides, as when a switch restarts.
  result<void> disconnect() {
    begin("10 % of the members lose their connections");
    world_.disconnect(options_.members / 2, tenth());
    return resume();
  }

  result<void> short_partition() {
    begin("10 % of the members are cut off for 6 s");
    world_.cut_off(options_.members / 2, tenth());
    world_.run(short_partition_time);
    world_.heal();
    return resume();
  }

  result<void> partition() {
    begin("10 % of the members are cut off for 15 s");
    world_.cut_off(options_.members / 2, tenth());
    world_.run(partition_time);
    simulated("dropped after", seconds(world_.last_dropped() - began_), "s");
    simulated("freed after", seconds(world_.last_expired() - began_), "s");
    show_readers();
    began_ = world_.now();
    part_ = ", healed";
    world_.heal();
    return converge({});
  }

  /// A member dies, and the others replace the lost replicas.
  result<void> lose_one() {
    begin("a member dies");
    const auto lost = kill(1, false);
    auto done = repair();
    if (done && repaired_.first < world_.last_dropped() + repair_policy{}.delay)
      return wrong("copies were made before the member could come back");
    if (done && repaired_.pages != lost)
      return wrong(std::to_string(repaired_.pages) + " copies were made anew, "
                   + std::to_string(lost) + " were lost");
    return done;
  }

  /// A second member dies while replicas are being recreated.
  result<void> lose_two() {
    begin("two members die one after the other");
    kill(2, true);
    world_.run(patience, [this] { return world_.is_repairing(); });
    kill(4, false);
    return repair();
  }

  // -- parts of phases --------------------------------------------------------

  void begin(const std::string& what) {
    phase_ = title_ + what;
    part_.clear();
    began_ = world_.now();
    world_.take_reader_figures();
    world_.take_repair_figures();
    if (hooks_.progress)
      hooks_.progress(phase_);
  }

  uint32_t tenth() const { return std::max(options_.members / 10, 1U); }

  /// @returns the number of pages it held
  uint64_t kill(uint32_t member, bool closes_connections) {
    const auto& who = world_.members()[member];
    const auto count = who.pages.last() - who.pages.first() + who.copies.size();
    world_.kill_member(member, closes_connections);
    return count;
  }

  /// After an absence shorter than member_ttl, members continue where they were: pages are not
  /// reported again and no replicas are made.
  result<void> resume() {
    auto done = converge({});
    if (done && reported_ > 0)
      return wrong(std::to_string(reported_) + " pages were reported again");
    if (done && world_.take_repair_figures().pages > 0)
      return wrong("copies were made of pages that are there");
    return done;
  }

  /// Waits until every page has its full number of replicas again, while readers continue.
  result<void> repair() {
    world_.run(member_ttl + 2 * beat_pause + repair_policy{}.delay + calm);
    const auto ended = world_.run(patience, [this] { return !world_.is_repairing(); });
    if (is_stopped())
      return fail(ec::stopping, "stopped by a signal");
    if (!ended)
      return fail(ec::deadline_exceeded, phase_ + ": copies are still made after ten minutes");
    repaired_ = world_.take_repair_figures();
    const auto time = seconds(repaired_.last - repaired_.first);
    const auto per_second = time > 0 ? static_cast<double>(repaired_.most_bytes) / time : 0;
    const auto batch = static_cast<double>(limits::storage_batch_pages)
                       * static_cast<double>(slot_bytes_for(object_bytes));
    simulated("copies made anew", static_cast<double>(repaired_.pages), "");
    simulated("the first after", seconds(repaired_.first - began_), "s");
    simulated("the last after", seconds(repaired_.last - began_), "s");
    simulated("read from the busiest member, a second", per_second / 1e6, "MB");
    simulated("ahead of the limit at most", repaired_.most_ahead / batch, "batches");
    const auto seen = show_readers();
    const auto [few, many] = world_.ill_copied();
    if (repaired_.pages == 0 || repaired_.left_out > 0 || few > 0 || many > 0)
      return wrong(std::to_string(few) + " pages have fewer copies than before, "
                   + std::to_string(many) + " have more, nobody took "
                   + std::to_string(repaired_.left_out));
    if (repaired_.most_ahead > 2 * batch)
      return wrong("a member had more read from it than the limit of a second");
    if (seen.misses > 0 || seen.late > 0)
      return wrong("readers missed " + std::to_string(seen.misses) + " pages and waited "
                   + std::to_string(seen.late) + " times");
    return check();
  }

  tl::unexpected<error> wrong(const std::string& what) const {
    return fail(ec::corrupt_page, phase_ + ": " + what);
  }

  /// Waits until all living members are mounted everywhere and have reported, for a while.
  result<void> settle() {
    const auto is_calm = [this] {
      return world_.is_settled() && world_.now() - world_.last_settled() > calm
             && world_.now() - began_ > calm;
    };
    if (world_.run(patience, is_calm))
      return {};
    if (is_stopped())
      return fail(ec::stopping, "stopped by a signal");
    return fail(ec::deadline_exceeded, phase_ + ": members still report after ten minutes");
  }

  result<void> converge(duration pause) {
    if (auto whole = settle(); !whole)
      return whole;
    simulated("all keys offered again after", seconds(world_.last_settled() - began_ - pause), "s");
    show_readers();
    return check();
  }

  /// Waits until a dead member's pages are removed.
  result<void> forget() {
    world_.run(member_ttl + calm,
               [this] { return world_.now() - began_ > watch_time && all_dropped(); });
    simulated("no longer offered after", seconds(world_.last_dropped() - began_), "s");
    simulated("freed after", seconds(world_.last_expired() - began_), "s");
    show_readers();
    return check();
  }

  bool all_dropped() {
    return world_.is_quiet()
           && std::ranges::all_of(world_.shards(), [&](const simulated_shard& shard) {
                return shard.table.counters().members == living();
              });
  }

  uint64_t living() const {
    return static_cast<uint64_t>(
      std::ranges::count(world_.members(), member_fate::alive, &simulated_member::fate));
  }

  double held() const {
    auto count = uint64_t{0};
    for (const auto& who : world_.members())
      if (who.fate == member_fate::alive)
        count += who.pages.last() - who.pages.first();
    return static_cast<double>(count);
  }

  /// Number of sampled keys that moved between old shards.
  uint64_t strays(const shard_set& before) {
    const auto after = world_.first_shards(world_.shard_count());
    auto count = uint64_t{0};
    for (auto i = 0; i < samples; ++i) {
      const auto& pages = world_.members()[random_() % options_.members].pages;
      const auto key = pages.announced(pages.first() + random_() % pages.slots()).key;
      const auto is = after.keepers_of(key);
      count += is != before.keepers_of(key) && !is.has(before.numbers.size()) ? 1 : 0;
    }
    return count;
  }

  bool is_stopped() const { return hooks_.is_stopped && hooks_.is_stopped(); }

  // -- checks -----------------------------------------------------------------

  /// Lets outstanding requests finish; then compares the index with the living members' pages.
  result<void> check() {
    note_wrong(world_.take_reader_figures());
    world_.set_loaded(false);
    const auto is_quiet = world_.run(patience, [this] { return world_.is_quiet(); });
    if (is_stopped())
      return fail(ec::stopping, "stopped by a signal");
    if (!is_quiet)
      return fail(ec::deadline_exceeded, phase_ + ": questions stay without an answer");
    if (was_told_wrong_)
      return wrong("readers were told of places where no page is");
    auto difference = world_.difference(random_, samples);
    if (!difference)
      difference = list();
    if (difference)
      return wrong(*difference);
    world_.set_loaded(true);
    return {};
  }

  /// Makes members query the list of all members, and checks it.
  std::optional<std::string> list() {
    const auto asked = world_.list_all();
    world_.run(patience, [this] { return world_.is_quiet(); });
    if (auto difference = world_.difference_of_lists(asked))
      return difference;
    longest_list_ = std::max(longest_list_, world_.take_reader_figures().longest_list);
    if (longest_list_ > limits::members_listed)
      return "a message names " + std::to_string(longest_list_) + " members";
    return std::nullopt;
  }

  // -- figures ----------------------------------------------------------------

  void simulated(const std::string& name, double value, const std::string& unit) {
    report_.simulated.push_back({phase_ + part_ + ": " + name, value, unit});
  }

  void measured(const std::string& name, double value, const std::string& unit) {
    report_.measured.push_back({phase_ + part_ + ": " + name, value, unit});
  }

  void note_wrong(const reader_figures& seen) {
    was_told_wrong_ = was_told_wrong_ || seen.wrong > 0;
    longest_list_ = std::max(longest_list_, seen.longest_list);
  }

  reader_figures show_readers() {
    const auto seen = world_.take_reader_figures();
    note_wrong(seen);
    reported_ = seen.reported;
    simulated("pages in block reports", static_cast<double>(seen.reported), "");
    simulated("questions for members", static_cast<double>(seen.lists), "");
    simulated("routes that readers gave up for nothing", static_cast<double>(seen.forgotten), "");
    simulated("keys looked up", static_cast<double>(seen.keys), "");
    simulated("misses of keys that are there", static_cast<double>(seen.misses), "");
    simulated("keys that both keepers were asked for", static_cast<double>(seen.asked_twice), "");
    simulated("offers of keys that are gone", static_cast<double>(seen.stale), "");
    simulated("requests that failed", static_cast<double>(seen.failed), "");
    simulated("longest wait of a lookup", milliseconds(seen.longest_wait), "ms");
    simulated("lookups that waited for more than 10 ms",
              seen.lookups == 0
                ? 0
                : 100.0 * static_cast<double>(seen.late) / static_cast<double>(seen.lookups),
              "%");
    return seen;
  }

  kind_figures sum(message_kind kind) {
    auto all = kind_figures{};
    for (const auto& shard : world_.shards()) {
      const auto& one = shard.figures[static_cast<size_t>(kind)];
      all.messages += one.messages;
      all.items += one.items;
      all.coded += one.coded;
      all.coded_items += one.coded_items;
      all.request_bytes += one.request_bytes;
      all.answer_bytes += one.answer_bytes;
      all.decode_ns += one.decode_ns;
      all.table_ns += one.table_ns;
      all.encode_ns += one.encode_ns;
    }
    return all;
  }

  /// Reports the mean CPU time of a message kind. @returns the total of that kind, in seconds
  double measure_kind(message_kind kind) {
    const auto all = sum(kind);
    if (all.coded == 0)
      return 0;
    const auto name = std::string{"CPU per "} + to_string(kind);
    const auto coded = static_cast<double>(all.coded);
    const auto total_us = (all.decode_ns + all.table_ns + all.encode_ns) / 1e3 / coded;
    measured(name + ": decode", all.decode_ns / 1e3 / coded, "us");
    measured(name + ": table", all.table_ns / 1e3 / coded, "us");
    measured(name + ": encode", all.encode_ns / 1e3 / coded, "us");
    measured(name + ": keys", static_cast<double>(all.coded_items) / coded, "");
    return total_us / 1e6 * static_cast<double>(all.messages);
  }

  /// The busiest shard's share of all listed members, in percent.
  double busiest_with_lists() {
    auto all = uint64_t{0};
    auto most = uint64_t{0};
    for (const auto& shard : world_.shards()) {
      const auto count = shard.figures[static_cast<size_t>(message_kind::list)].items;
      all += count;
      most = std::max(most, count);
    }
    return 100.0 * static_cast<double>(most) / static_cast<double>(std::max(all, uint64_t{1}));
  }

  void show_traffic() {
    auto cpu = 0.0;
    auto messages = 0.0;
    auto bytes = 0.0;
    const auto shard_seconds = seconds(steady_time) * options_.shards;
    for (const auto kind : {message_kind::beat, message_kind::publish, message_kind::withdraw,
                            message_kind::locate, message_kind::list}) {
      const auto all = sum(kind);
      if (all.coded == 0)
        continue;
      const auto coded = static_cast<double>(all.coded);
      const auto per_second = static_cast<double>(all.messages) / shard_seconds;
      const auto size = static_cast<double>(all.request_bytes + all.answer_bytes) / coded;
      const auto name = std::string{to_string(kind)};
      simulated(name + ": a second and shard", per_second, "");
      simulated(name + ": keys", static_cast<double>(all.items) / static_cast<double>(all.messages),
                "");
      simulated(name + ": question", static_cast<double>(all.request_bytes) / coded, "B");
      simulated(name + ": answer", static_cast<double>(all.answer_bytes) / coded, "B");
      messages += per_second;
      bytes += per_second * size;
      cpu += measure_kind(kind);
    }
    simulated("lists of members that the busiest shard answers", busiest_with_lists(), "%");
    simulated("messages a second and shard", messages, "");
    simulated("bytes a second and shard, both ways", bytes / 1e6, "MB");
    const auto load = cpu / shard_seconds;
    measured("a shard's codecs and table are busy", 100 * load, "%");
    if (copies_ == 1)
      measured("members that shards could serve if there were nothing else, at 70 %",
               std::floor(options_.members * most_load / load), "");
  }

  simulation_options options_;
  simulation_hooks hooks_;
  uint64_t pages_each_;
  uint32_t copies_;
  double resident_before_;
  index_world world_;
  std::mt19937_64 random_;
  std::string title_;
  std::string phase_;
  std::string part_;
  time_point began_{};
  bool was_told_wrong_ = false;
  uint64_t longest_list_ = 0;
  uint64_t reported_ = 0;
  repair_figures repaired_;
  simulation_report report_;
};

} // namespace

result<simulation_report> simulate_index(const simulation_options& options,
                                         const simulation_hooks& hooks) {
  const auto least = 4 * limits::storage_batch_pages;
  if (options.members < least_members || options.members > limits::index_members)
    return fail(ec::invalid_argument, std::to_string(options.members) + " members; expected 10 to "
                                        + std::to_string(limits::index_members));
  if (options.keys / options.members < least)
    return fail(ec::invalid_argument, std::to_string(options.keys) + " keys; expected "
                                        + std::to_string(least) + " or more for each member");
  if (options.shards < 2 || options.shards >= limits::index_shards)
    return fail(ec::invalid_argument, std::to_string(options.shards) + " shards; expected 2 to "
                                        + std::to_string(limits::index_shards - 1));
  if (!(options.writes_per_s > 0 && options.writes_per_s <= 1e6)
      || !(options.lookups_per_s > 0 && options.lookups_per_s <= 1e6))
    return fail(ec::invalid_argument, "rates are more than 0 and at most a million a second");
  const auto load = world_load{1, crowded_host, options.writes_per_s, options.lookups_per_s};
  auto report = simulation{options, load, hooks, ""}.of_index();
  if (!report)
    return report;
  // Fewer members and keys, because two replicas take twice the memory.
  auto fewer = options;
  fewer.members = std::max(options.members / 10, least_members);
  fewer.keys = options.keys / options.members * fewer.members;
  auto twofold = load;
  twofold.copies = 2;
  twofold.members_per_host = 2;
  const auto second = simulation{fewer, twofold, hooks, "two copies, "}.of_copies();
  if (!second)
    return second;
  report->simulated.insert(report->simulated.end(), second->simulated.begin(),
                           second->simulated.end());
  report->measured.insert(report->measured.end(), second->measured.begin(), second->measured.end());
  return report;
}

} // namespace hicache::bench
