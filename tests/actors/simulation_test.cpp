// Random requests on three complete ranks under random schedules. Whatever the order in which
// copies, reads and reductions finish: the ranks' trees are equal after every step, every request
// is answered, every byte served from the cache is right, and no page is lost.

#include "tests/actors/rank_fixture.hpp"

#include <cstdlib>
#include <map>
#include <random>

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto rank_count = uint32_t{3};
constexpr auto page_size = uint32_t{4};

tree_options options_of(uint64_t seed) {
  return {.page_size = page_size,
          .device_pages = 14,
          .host_pages = 18,
          .prefetch_reserve_pages = 6,
          .layers = 2,
          .prefetch = seed % 2 == 0 ? prefetch_policy::best_effort : prefetch_policy::wait_complete,
          .prefetch_threshold_tokens = 4,
          .load_back_threshold_tokens = 4,
          .storage_attached = true};
}

class simulation {
public:
  explicit simulation(uint64_t seed) : random_(seed), world_(rank_count, options_of(seed)) {
    // Now and then one rank cannot read or write a page; which one depends on the schedule.
    world_.store.fault_on_get
      = [this](const page_key&) { return draw(60) == 0 ? ec::corrupt_page : ec::none; };
    world_.store.fault_on_set
      = [this](const page_key&) { return draw(60) == 0 ? ec::io_failure : ec::none; };
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

    uint64_t cached_pages() const { return loaded.front().device_tokens / page_size; }
  };

  static bool has_failed() { return ::testing::Test::HasFailure(); }

  uint32_t draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  /// Prompts from a few blocks, so that prefixes are shared.
  tokens_t draw_tokens() {
    auto tokens = tokens_t{};
    for (auto blocks = 1 + draw(4); blocks > 0; --blocks) {
      const auto block = make_tokens(1 + draw(5), 8);
      tokens.insert(tokens.end(), block.begin(), block.end());
    }
    return tokens;
  }

  void turn() {
    const auto choice = draw(10);
    if (choice < 3 && requests_.size() < 3)
      return open();
    if (choice < 7 && !requests_.empty())
      return proceed(
        std::next(requests_.begin(), draw(static_cast<uint32_t>(requests_.size())))->first);
    if (choice == 7) // Some of what is under way happens.
      return some_events(draw(30));
    step();
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
      ASSERT_FALSE(request.loaded.empty());
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
        world_.compute(*rank, request.tokens, (*room->device_pages)[i], i);
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
        ASSERT_TRUE(world_.holds(*rank, request.tokens, (*mine.device_pages)[i], i))
          << "rank " << rank->number << ", page " << i;
    }
    served_ += request.loaded.front().device_tokens;
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
    do {
      world_.run_shuffled(random_, [] { return true; });
      if (has_failed())
        return;
      step();
    } while (in_flight_);
    world_.run();
    // A prefetch that finds nothing fills the reserve up.
    const auto id = ++last_request_;
    const auto unknown = buffer_of(make_tokens(77, 16));
    apply<match_result>(match_request{id, {}, unknown, 16});
    apply<prefetch_result>(prefetch_request{id});
    close(id);
    world_.run();
    step();
    world_.run();
    world_.expect_nothing_lost();
    EXPECT_TRUE(world_.log->notices.empty());
  }

public:
  uint64_t completed() const { return completed_; }
  uint64_t served() const { return served_; }
  uint64_t fetched() const { return fetched_; }

private:
  std::mt19937_64 random_;
  rank_world world_;
  std::map<request_id, engine_request> requests_;
  request_id last_request_ = 0;
  bool in_flight_ = false;
  uint64_t completed_ = 0;
  uint64_t served_ = 0;
  uint64_t fetched_ = 0;
};

TEST(SimulationTest, RanksStayEqualWhateverTheSchedule) {
  auto first = uint64_t{1};
  auto last = uint64_t{200};
  if (const auto* chosen = std::getenv("HICACHE_SEED"))
    first = last = std::strtoull(chosen, nullptr, 10);
  auto completed = uint64_t{0};
  auto served = uint64_t{0};
  auto fetched = uint64_t{0};
  for (auto seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("HICACHE_SEED=" + std::to_string(seed));
    auto run = simulation{seed};
    run.run(120);
    completed += run.completed();
    served += run.served();
    fetched += run.fetched();
  }
  RecordProperty("completed", std::to_string(completed));
  RecordProperty("served_tokens", std::to_string(served));
  RecordProperty("fetched_tokens", std::to_string(fetched));
  // The seeds reach what they are for.
  if (first != last) {
    EXPECT_GT(completed, 1000u);
    EXPECT_GT(served, 5000u);
    EXPECT_GT(fetched, 1000u);
  }
}

} // namespace
} // namespace hicache
