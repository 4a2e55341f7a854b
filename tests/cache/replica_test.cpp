// Random requests on several ranks at once: the trees stay equal although copies, reads and page
// numbers differ, what is served is right, and nothing is lost.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

using namespace hicache;
using namespace hicache::test;

namespace {

using content = std::vector<uint64_t>;

struct pressure {
  uint32_t l1_pages;
  uint32_t l2_pages;
  uint32_t reserve_pages;
  bool is_roomy;
};

/// Several ranks under the same operations; what differs between them is drawn at random.
class cluster {
public:
  cluster(uint32_t seed, const pressure& size) : random_(seed), is_roomy_(size.is_roomy) {
    const auto policy
      = draw(2) == 0 ? prefetch_policy::best_effort : prefetch_policy::wait_complete;
    for (auto i = 0; i < 3; ++i) {
      ranks_.push_back(std::make_unique<tree_driver>(
        tree_options{.page_size = 2,
                     .l1_pages = size.l1_pages,
                     .l2_pages = size.l2_pages,
                     .prefetch_reserve_pages = size.reserve_pages,
                     .layers = 1,
                     .prefetch = {.policy = policy, .threshold_tokens = 4},
                     .load_back_threshold_tokens = 4,
                     .storage_attached = size.l2_pages > 0}));
      ranks_.back()->fetch_length = [this](fetch_id, int64_t hit) {
        return draw(3) == 0   ? -1
               : draw(4) == 0 ? static_cast<int64_t>(draw(static_cast<uint32_t>(hit) + 1))
                              : hit;
      };
    }
  }

  void run(int operations) {
    for (auto i = 0; i < operations; ++i) {
      turn();
      compare();
      if (testing::Test::HasFailure())
        return;
    }
    drain();
  }

private:
  struct request {
    tokens_t tokens;
    cache_namespace ns;
    bool is_scheduled = false;
    bool is_ready = false;
    bool has_computed = false;
  };

  uint32_t draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  /// Tokens from a small alphabet of blocks, so that prefixes are shared.
  tokens_t draw_tokens() {
    auto tokens = tokens_t{};
    for (auto blocks = 1 + draw(6); blocks > 0; --blocks) {
      const auto block = 100 * (1 + draw(2));
      tokens = std::move(tokens) + range(block, block + (draw(8) == 0 ? 3 : 4));
    }
    return tokens;
  }

  void turn() {
    const auto choice = draw(20);
    if (requests_.size() < 6 && choice < 6)
      return open();
    if (choice < 12 && !requests_.empty())
      return advance(
        std::next(requests_.begin(), draw(static_cast<uint32_t>(requests_.size())))->first);
    if (choice < 16) {
      for (auto& rank : ranks_)
        copy_some(*rank);
      return;
    }
    step();
  }

  void open() {
    auto next
      = request{draw_tokens(), draw(4) == 0 ? cache_namespace{"lora", ""} : cache_namespace{}};
    auto id = request_id{0};
    for (auto& rank : ranks_)
      id = rank->open(next.tokens, next.ns);
    const auto& matched = ranks_.front()->matched(id);
    const auto hit = (matched.l1_tokens + matched.l2_tokens) / 2;
    const auto words = ranks_.front()->contents(next.tokens, next.ns);
    auto known = uint64_t{0};
    while (known < words.size() && ever_cached_.contains(words[known]))
      ++known;
    // Eviction may forget; nothing may be made up.
    EXPECT_LE(hit, known);
    if (is_roomy_) {
      EXPECT_EQ(hit, known);
    }
    if (draw(2) == 0)
      for (auto& rank : ranks_) {
        EXPECT_TRUE(rank->tree.prefetch(id));
        rank->settle();
      }
    requests_[id] = std::move(next);
  }

  /// The request does the next thing in its life, or is given up.
  void advance(request_id id) {
    auto& each = requests_.at(id);
    if (draw(8) == 0)
      return close(id);
    if (!each.is_scheduled) {
      each.is_scheduled = true;
      for (auto& rank : ranks_) {
        each.is_ready = rank->tree.schedule(id)->ready;
        rank->settle();
      }
    } else if (!each.is_ready) {
      return;
    } else if (!each.has_computed && draw(2) == 0) {
      for (auto& rank : ranks_)
        rank->load(id);
    } else if (!each.has_computed || draw(2) == 0) {
      compute(id);
    } else {
      close(id);
    }
  }

  void compute(request_id id) {
    auto& each = requests_.at(id);
    auto tokens = each.tokens;
    if (each.has_computed)
      tokens = std::move(tokens) + range(500, 500 + 1 + draw(4));
    auto has_pages = false;
    for (auto& rank : ranks_)
      has_pages = rank->compute(id, tokens);
    if (!has_pages)
      return close(id);
    each.tokens = tokens;
    each.has_computed = true;
    for (auto& rank : ranks_)
      rank->insert_open(id, tokens);
    for (const auto word : ranks_.front()->contents(tokens, each.ns))
      ever_cached_.insert(word);
  }

  void close(request_id id) {
    for (auto& rank : ranks_)
      rank->close(id);
    requests_.erase(id);
  }

  void copy_some(tree_driver& rank) {
    rank.run_writes(draw(3));
    rank.run_loads(draw(3));
    rank.run_backups(draw(3));
    if (draw(8) == 0)
      rank.give_up_backup();
    if (draw(16) == 0)
      rank.end_late_backups();
    // The reserve is used in the order in which reads happen to be made.
    std::shuffle(rank.reserve.begin(), rank.reserve.end(), random_);
    if (draw(2) == 0)
      rank.run_fetches();
  }

  void step() {
    auto facts = ranks_.front()->offer();
    for (const auto& rank : ranks_) {
      const auto offered = rank->offer();
      facts.writes_done = std::min(facts.writes_done, offered.writes_done);
      facts.loads_done = std::min(facts.loads_done, offered.loads_done);
      for (auto i = size_t{0}; i < facts.backups.size(); ++i)
        facts.backups[i] = std::min(facts.backups[i], offered.backups[i]);
      for (auto i = size_t{0}; i < facts.fetches.size(); ++i) {
        auto& fetch = facts.fetches[i];
        fetch.arrived = std::min(fetch.arrived, offered.fetches[i].arrived);
        fetch.found = std::min(fetch.found, offered.fetches[i].found);
      }
    }
    facts.now_ns = ++now_ns_;
    if (draw(8) == 0)
      facts.loss_age_ns = static_cast<int64_t>(draw(20));
    for (auto& rank : ranks_)
      for (const auto& ready : rank->apply(facts))
        requests_.at(ready.request).is_ready = true;
  }

  void compare() {
    const auto& first = *ranks_.front();
    for (const auto& rank : ranks_) {
      EXPECT_EQ(rank->tree.digest(), first.tree.digest());
      EXPECT_TRUE(std::ranges::equal(rank->tree.fetching(), first.tree.fetching()));
      EXPECT_EQ(rank->tree.in_flight(), first.tree.in_flight());
      EXPECT_EQ(rank->writes, first.writes);
      EXPECT_EQ(rank->loads, first.loads);
      EXPECT_EQ(rank->backups, first.backups);
    }
  }

  /// After the last request, everything that is not cached is free.
  void drain() {
    while (!requests_.empty())
      close(requests_.begin()->first);
    for (auto& rank : ranks_)
      rank->fetch_length = [](fetch_id, int64_t found) { return found; };
    while (ranks_.front()->tree.in_flight()) {
      for (auto& rank : ranks_)
        rank->run_all();
      step();
      compare();
    }
    for (auto& rank : ranks_)
      EXPECT_EQ(rank->protected_size(), 0);
    // Pages may have to be written first.
    while (ranks_.front()->total() > 0) {
      for (auto& rank : ranks_) {
        rank->evict(rank->evictable());
        rank->run_all();
      }
      step();
      compare();
    }
    for (auto& rank : ranks_) {
      const auto stats = rank->tree.stats();
      EXPECT_EQ(stats.l1_evictable + stats.l1_protected, 0);
      EXPECT_EQ(stats.l1_free * 2 + rank->total(), rank->tree.stats().l1_free * 2);
    }
    compare();
  }

  std::mt19937 random_;
  bool is_roomy_;
  int64_t now_ns_ = 0;
  std::vector<std::unique_ptr<tree_driver>> ranks_;
  std::map<request_id, request> requests_;
  std::set<uint64_t> ever_cached_;
};

void run(uint32_t seed, const pressure& size, int operations) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto ranks = cluster{seed, size};
  ranks.run(operations);
}

} // namespace

TEST(Replicas, StayEqualUnderPressure) {
  for (auto seed = 0u; seed < 10 && !HasFailure(); ++seed)
    run(seed, {.l1_pages = 20, .l2_pages = 64, .reserve_pages = 16, .is_roomy = false}, 300);
}

TEST(Replicas, StayEqualWhenTheHostIsSmall) {
  for (auto seed = 100u; seed < 110 && !HasFailure(); ++seed)
    run(seed, {.l1_pages = 28, .l2_pages = 24, .reserve_pages = 8, .is_roomy = false}, 300);
}

TEST(Replicas, StayEqualWithoutAHostTier) {
  for (auto seed = 200u; seed < 204 && !HasFailure(); ++seed)
    run(seed, {.l1_pages = 24, .l2_pages = 0, .reserve_pages = 0, .is_roomy = false}, 300);
}

TEST(Replicas, RememberEverythingWhereThereIsRoom) {
  for (auto seed = 300u; seed < 304 && !HasFailure(); ++seed)
    run(seed, {.l1_pages = 4000, .l2_pages = 4000, .reserve_pages = 16, .is_roomy = true}, 300);
}
