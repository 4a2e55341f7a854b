// Random requests on three complete ranks under random schedules and policies, with a store that is
// late, fails, comes and goes. Whatever the order in which copies, reads and reductions finish: the
// ranks' trees are equal after every step, every request is answered, every byte served from the
// cache is right, and no page is lost. HICACHE_SEED=n runs one seed.

#include "tests/actors/rank_fixture.hpp"

#include <spdlog/spdlog.h>

#include <array>
#include <cstdlib>
#include <map>
#include <random>

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto rank_count = uint32_t{3};
constexpr auto page_size = uint32_t{4};

constexpr auto l2_pages = uint32_t{18};
/// Seeds run in so many ctest entries, each with so many schedules.
constexpr auto batches = uint64_t{20};
constexpr auto seeds_per_batch = uint64_t{600};

tree_options options_of(uint64_t seed) {
  auto random = std::mt19937_64{~seed};
  const auto pick = [&](auto... choices) {
    const auto list = std::vector{choices...};
    return list[random() % list.size()];
  };
  return {.page_size = page_size,
          .l1_pages = 14,
          .l2_pages = l2_pages,
          .prefetch_reserve_pages = 6,
          .layers = 2,
          .write = pick(write_policy::write_through, write_policy::write_through_selective,
                        write_policy::write_back),
          .prefetch = {.policy = pick(prefetch_policy::best_effort, prefetch_policy::wait_complete,
                                      prefetch_policy::timeout),
                       .threshold_tokens = 4,
                       .timeout_base = std::chrono::milliseconds{10},
                       .timeout_per_ki_token = std::chrono::milliseconds{100},
                       .timeout_max = std::chrono::milliseconds{30}},
          .load_back_threshold_tokens = 4,
          .storage_attached = pick(true, true, true, false),
          .storage_backend = "shared",
          .backup_limit_pages = pick(UINT64_MAX, uint64_t{3}, uint64_t{8}),
          .l1_room = pick(watermarks{}, watermarks{2, 4})};
}

class simulation {
public:
  explicit simulation(uint64_t seed)
    : is_changing_(seed % 2 == 0), random_(seed), world_(rank_count, options_of(seed)) {
    // Now and then one rank cannot read or write a page; which one depends on the schedule.
    for (auto* store : {&world_.store, &world_.other_store}) {
      store->fault_on_get
        = [this](const page_key&) { return draw(60) == 0 ? ec::corrupt_page : ec::none; };
      store->fault_on_set
        = [this](const page_key&) { return draw(60) == 0 ? ec::io_failure : ec::none; };
    }
    for (const auto& rank : world_.ranks) {
      rank->gate->draw = [this](uint32_t below) { return draw(below); };
      rank->gate->fault = [this] {
        constexpr auto codes = std::array{ec::deadline_exceeded, ec::peer_unreachable};
        return draw(40) == 0 ? codes[draw(2)] : ec::none;
      };
    }
    world_.on_open = [this](uint32_t) -> result<void> {
      if (draw(12) == 0)
        return fail(ec::io_failure, "the disk is gone");
      return {};
    };
  }

  void run(int turns) {
    for (auto i = 0; i < turns && !has_failed(); ++i)
      turn();
    drain();
  }

private:
  enum class stage { matched, fetching, ready, loaded };

  struct engine_request {
    tokens_t tokens;
    stage at = stage::matched;
    bool prefetches = false;
    /// One per rank.
    std::vector<load_result> loaded;

    uint64_t cached_pages() const { return loaded.front().l1_tokens / page_size; }
  };

  static bool has_failed() { return ::testing::Test::HasFailure(); }

  uint32_t draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  /// Prompts from a few blocks, so that prefixes are shared; or that of another request, so that
  /// both want the same fetch.
  tokens_t draw_tokens() {
    if (!requests_.empty() && draw(3) == 0)
      return requests_.begin()->second.tokens;
    auto tokens = tokens_t{};
    for (auto blocks = 1 + draw(4); blocks > 0; --blocks) {
      const auto block = make_tokens(1 + draw(5), 8);
      tokens.insert(tokens.end(), block.begin(), block.end());
    }
    return tokens;
  }

  void turn() {
    const auto choice = draw(24);
    if (choice < 7 && requests_.size() < 4)
      return open();
    if (choice < 16 && !requests_.empty())
      return proceed(
        std::next(requests_.begin(), draw(static_cast<uint32_t>(requests_.size())))->first);
    if (choice < 19) // Some of what is under way happens.
      return some_events(draw(40));
    if (choice == 19)
      return pass_time(std::chrono::milliseconds{1 + draw(20)});
    if (choice == 20)
      return is_changing_ ? change_storage() : forget();
    step();
  }

  /// What is wanted again has to come from the store.
  void forget() {
    for (const auto tier : {cache_tier::l1, cache_tier::l2})
      apply<evict_result>(evict_request{tier, 1000});
  }

  /// Due timers send their messages; nothing is delivered.
  void pass_time(caf::timespan time) {
    world_.clock.advance(time);
    world_.sched.advance_time(time);
  }

  void change_storage() {
    const auto wanted = std::array{"", "shared", "other"};
    const auto time = std::chrono::milliseconds{draw(2) == 0 ? 10 : 1000};
    changes_.push_back(world_.send_attach(wanted[draw(3)], time));
  }

  /// Every request for a change has an answer, and a reasonable one.
  void expect_changes_answered() {
    for (const auto& each : changes_) {
      ASSERT_TRUE(each.arrived()) << "a change of L3 without an answer";
      const auto code = each.code();
      EXPECT_TRUE(code == ec::none || code == ec::invalid_argument || code == ec::limit_reached
                  || code == ec::deadline_exceeded || code == ec::io_failure)
        << to_string(each.get().error());
      changed_ += code == ec::none;
    }
  }

  void some_events(uint32_t count) {
    world_.run_shuffled(random_, [&] { return count-- > 0; });
  }

  /// Runs until all ranks have answered, and no longer.
  template <class Replies>
  void await(const Replies& replies) {
    const auto is_open = [&] {
      return std::any_of(replies.begin(), replies.end(),
                         [](const auto& x) { return !x.arrived(); });
    };
    world_.run_shuffled(random_, is_open);
    ASSERT_FALSE(is_open()) << "a request without an answer";
  }

  /// One operation on every rank; all must answer alike. One answer per rank, none on refusal.
  template <class Result>
  std::vector<Result> apply_all(const tree_operation& operation) {
    const auto replies = world_.send_operations({operation});
    await(replies);
    if (has_failed())
      return {};
    auto answers = std::vector<tree_answer>{};
    for (const auto& each : replies)
      answers.push_back(each.get()->list.front());
    for (const auto& each : answers) {
      EXPECT_EQ(each.has_value(), answers.front().has_value());
      EXPECT_TRUE(each || each.error() == answers.front().error());
      EXPECT_TRUE(each || each.error().code == ec::out_of_device_pages) << to_string(each.error());
    }
    auto all = std::vector<Result>{};
    if (answers.front())
      for (const auto& each : answers)
        all.push_back(std::get<Result>(*each));
    return all;
  }

  /// The same; rank 0's answer.
  template <class Result>
  std::optional<Result> apply(const tree_operation& operation) {
    const auto all = apply_all<Result>(operation);
    return all.empty() ? std::nullopt : std::optional{all.front()};
  }

  void open() {
    const auto id = ++last_request_;
    auto next = engine_request{};
    next.tokens = draw_tokens();
    const auto limit = next.tokens.size() - draw(2);
    if (!apply<match_result>(match_request{id, {}, buffer_of(next.tokens), limit}))
      return;
    if (draw(3) > 0) {
      const auto fetch = apply<prefetch_result>(prefetch_request{id});
      next.prefetches = fetch && fetch->tokens > 0;
    }
    requests_[id] = std::move(next);
  }

  void proceed(request_id id) {
    auto& request = requests_.at(id);
    if (draw(25) == 0)
      return close(id); // The user hung up.
    if (request.at == stage::matched) {
      const auto scheduled = apply<schedule_result>(schedule_request{id});
      ASSERT_TRUE(scheduled);
      EXPECT_EQ(scheduled->ready, !request.prefetches);
      request.at = scheduled->ready ? stage::ready : stage::fetching;
    } else if (request.at == stage::ready) {
      request.loaded = apply_all<load_result>(load_request{id});
      if (!request.loaded.empty()) // Else the engine would try again later.
        request.at = stage::loaded;
    } else if (request.at == stage::loaded) {
      compute(id, request);
    }
  }

  void compute(request_id id, const engine_request& request) {
    check_bytes(request);
    if (has_failed())
      return;
    const auto room = apply<allocate_result>(allocate_request{id, request.tokens.size()});
    if (!room) // No device page is free: the engine would try again later.
      return;
    for (const auto& rank : world_.ranks)
      for (auto i = request.cached_pages(); i < request.tokens.size() / page_size; ++i)
        world_.compute(*rank, request.tokens, (*room->l1_pages)[i], i);
    EXPECT_TRUE(apply<insert_result>(insert_request{id, buffer_of(request.tokens)}));
    close(id);
    ++completed_;
  }

  void check_bytes(const engine_request& request) {
    for (const auto& rank : world_.ranks) {
      const auto& mine = request.loaded[rank->number];
      if (mine.progress)
        world_.run_shuffled(random_,
                            [&] { return mine.progress->done() < mine.progress->layers(); });
      for (auto i = uint64_t{0}; i < request.cached_pages(); ++i)
        ASSERT_TRUE(world_.holds(*rank, request.tokens, (*mine.l1_pages)[i], i))
          << "rank " << rank->number << ", page " << i;
    }
    served_ += request.loaded.front().l1_tokens;
  }

  void close(request_id id) {
    EXPECT_TRUE(apply<release_result>(release_request{id}));
    requests_.erase(id);
  }

  void step() {
    const auto replies = world_.send_step();
    await(replies);
    if (has_failed())
      return;
    const auto first = replies.front().get();
    ASSERT_TRUE(first) << to_string(first.error());
    for (const auto& each : replies) {
      const auto other = each.get();
      ASSERT_TRUE(other) << to_string(other.error());
      ASSERT_EQ(other->ready.size(), first->ready.size());
      for (auto i = size_t{0}; i < first->ready.size(); ++i)
        EXPECT_EQ(other->ready[i].fetched_tokens, first->ready[i].fetched_tokens);
    }
    world_.expect_equal_digests();
    for (const auto& ready : first->ready) {
      fetched_ += ready.fetched_tokens;
      requests_.at(ready.request).at = stage::ready;
    }
    in_flight_ = first->in_flight;
  }

  void drain() {
    while (!requests_.empty() && !has_failed())
      close(requests_.begin()->first);
    settle();
    expect_changes_answered();
    if (has_failed())
      return;
    expect_all_evictable();
    if (has_failed())
      return;
    // A prefetch that finds nothing fills the reserve up.
    const auto id = ++last_request_;
    const auto unknown = buffer_of(make_tokens(77, 16));
    apply<match_result>(match_request{id, {}, unknown, 16});
    apply<prefetch_result>(prefetch_request{id});
    close(id);
    settle();
    if (has_failed())
      return;
    world_.expect_nothing_lost();
    const auto& rank = *world_.ranks.front();
    EXPECT_EQ(world_.core_of(rank).stats().l2_free,
              l2_pages - (world_.is_attached(rank) ? 6u : 0u));
    EXPECT_TRUE(world_.log->notices.empty());
  }

  /// Steps until nothing is under way.
  void settle() {
    auto rounds = 0;
    const auto is_changing = [this] {
      return !std::ranges::all_of(changes_, [](const auto& x) { return x.arrived(); });
    };
    do {
      ASSERT_LT(++rounds, 1000) << "something is in flight for ever";
      world_.run_shuffled(random_, [] { return true; });
      pass_time(std::chrono::milliseconds{500}); // Writes that failed are tried again.
      world_.run_shuffled(random_, [] { return true; });
      step();
      if (has_failed())
        return;
    } while (in_flight_ || is_changing());
    world_.run();
    step(); // A change agreed on meanwhile takes effect.
    world_.run();
  }

  /// No lock is left: everything can be evicted.
  void expect_all_evictable() {
    const auto& core = world_.core_of(*world_.ranks.front());
    // A page that is written first may need the room of another one.
    for (auto i = 0; i < 8 && core.stats().nodes > 0; ++i)
      for (const auto tier : {cache_tier::l1, cache_tier::l2}) {
        apply<evict_result>(evict_request{tier, 1000});
        settle();
        if (has_failed())
          return;
      }
    for (const auto& node : core.nodes())
      ADD_FAILURE() << "node " << node.id << " below " << node.parent
                    << " stays; on device: " << node.in_l1 << ", on host: " << node.in_l2
                    << ", locks: " << node.l1_locks << " and " << node.l2_locks;
  }

public:
  uint64_t completed() const { return completed_; }
  uint64_t served() const { return served_; }
  uint64_t fetched() const { return fetched_; }
  uint64_t changed() const { return changed_; }

private:
  /// L3 comes and goes; otherwise L1 and L2 are emptied now and then.
  bool is_changing_;
  std::mt19937_64 random_;
  rank_world world_;
  std::map<request_id, engine_request> requests_;
  request_id last_request_ = 0;
  bool in_flight_ = false;
  uint64_t completed_ = 0;
  uint64_t served_ = 0;
  uint64_t fetched_ = 0;
  std::vector<test::reply<atom::ok>> changes_;
  uint64_t changed_ = 0;
};

class SimulationTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(SimulationTest, RanksStayEqualWhateverTheSchedule) {
  spdlog::set_level(spdlog::level::err); // Stores that fail are what is tested.
  auto seeds = std::vector<uint64_t>{};
  if (const auto* chosen = std::getenv("HICACHE_SEED")) {
    seeds.push_back(std::strtoull(chosen, nullptr, 10));
    if (seeds.front() % batches != GetParam())
      GTEST_SKIP() << "the seed belongs to another batch";
  } else {
    for (auto i = uint64_t{0}; i < seeds_per_batch; ++i)
      seeds.push_back(i * batches + GetParam());
  }
  auto completed = uint64_t{0};
  auto served = uint64_t{0};
  auto fetched = uint64_t{0};
  auto changed = uint64_t{0};
  for (const auto seed : seeds) {
    SCOPED_TRACE("HICACHE_SEED=" + std::to_string(seed));
    auto run = simulation{seed};
    run.run(100);
    completed += run.completed();
    served += run.served();
    fetched += run.fetched();
    changed += run.changed();
    if (HasFailure())
      return;
  }
  RecordProperty("completed", std::to_string(completed));
  RecordProperty("served_tokens", std::to_string(served));
  RecordProperty("fetched_tokens", std::to_string(fetched));
  RecordProperty("changes", std::to_string(changed));
  // The seeds reach what they are for.
  if (seeds.size() > 1) {
    EXPECT_GT(completed, seeds_per_batch);
    EXPECT_GT(served, 4 * seeds_per_batch);
    if (GetParam() % 2 == 0)
      EXPECT_GT(changed, seeds_per_batch / 4);
    else
      EXPECT_GT(fetched, seeds_per_batch / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationTest, ::testing::Range(uint64_t{0}, batches));

} // namespace
} // namespace hicache
