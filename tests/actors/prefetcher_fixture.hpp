#pragma once

#include "actors/prefetcher.hpp"
#include "actors/rank_reduction.hpp"
#include "base/limits.hpp"
#include "hicache/rank_reducer.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <string>

/// Prefetchers whose storage answers when the test says so.
namespace hicache::test {

inline constexpr auto page_bytes = uint64_t{256};
inline constexpr auto timeout = caf::timespan{std::chrono::seconds{3}};

/// A prefetcher with a storage that answers when the test says so.
struct prefetching_rank {
  rank_reduction_core_actor rank_reduction;
  prefetcher_actor prefetcher;
  caf::actor storage;
  caf::actor tree;
  std::shared_ptr<held_requests> held = std::make_shared<held_requests>();
  std::shared_ptr<recording> log = std::make_shared<recording>();
};

class PrefetcherTest : public actor_test {
protected:
  ~PrefetcherTest() override { stop_all(); }

  void start(size_t ranks, uint64_t threshold = 2, uint32_t reserve = 400) {
    threshold_ = threshold;
    auto peers = make_local_reducers(static_cast<uint32_t>(ranks));
    for (auto& peer : peers) {
      auto& rank = ranks_.emplace_back();
      rank.rank_reduction = spawn(rank_reduction, std::move(peer));
      rank.storage = spawn(fake_storage, rank.held, false);
      rank.tree = spawn(recorder, rank.log);
      rank.prefetcher = spawn(prefetcher, prefetcher_options{timeout, page_bytes, traffic_, when_},
                              caf::actor_cast<storage_actor>(rank.storage), rank.rank_reduction);
      if (reserve > 0)
        tell(rank.prefetcher, atom::stage_v, staging_command{page_run(1, reserve)});
    }
  }

  /// Fetches what follows page `first` of a prefix of `pages` pages, on every rank.
  void fetch(fetch_id id, uint64_t pages, uint64_t first = 0) {
    for (auto& rank : ranks_)
      send_as(rank.tree, rank.prefetcher, atom::fetch_v,
              fetch_command{id, names_of(1000 * id + first, pages - first), threshold_, 0, first,
                            page_compute_});
    run();
  }

  void terminate(fetch_id id, size_t rank = 0) {
    tell(ranks_[rank].prefetcher, atom::terminate_v, terminate_command{id});
  }

  /// Answers the oldest request of a verb on a rank.
  template <class Answer>
  void answer(const std::string& verb, const Answer& x, size_t rank = 0) {
    auto& held = *ranks_[rank].held;
    const auto i = std::find_if(held.begin(), held.end(),
                                [&](const held_request& each) { return each.verb == verb; });
    ASSERT_NE(i, held.end()) << verb;
    auto request = std::move(*i);
    held.erase(i);
    tell(ranks_[rank].storage,
         errand{[request, x](caf::event_based_actor*) mutable { request.promise.deliver(x); }});
  }

  void hit(uint64_t pages, size_t rank = 0) { answer("exists", storage_hit{pages}, rank); }

  /// A hit in two tiers: so many pages in the first, then so many in the second.
  void hit_tiers(size_t upper, size_t lower, size_t rank = 0) {
    auto tiers = tier_list(upper, 0);
    tiers.resize(upper + lower, 1);
    answer("exists",
           storage_hit{.pages = upper + lower,
                       .tiers = std::make_shared<const tier_list>(std::move(tiers)),
                       .names = tiers_},
           rank);
  }

  /// Serves a fetch of `pages` pages after a lookup of 1 ms, and reads of `page_time` a page.
  void measure(fetch_id id, uint64_t pages, caf::timespan page_time) {
    fetch(id, pages);
    advance(std::chrono::milliseconds{1});
    hit(pages);
    advance(static_cast<int64_t>(pages) * page_time);
    for (const auto reading = reads(); const auto each : reading) {
      static_cast<void>(each);
      read();
    }
  }

  /// Answers the oldest read; page `failed` of it fails.
  void read(std::optional<uint64_t> failed = {}, ec code = ec::io_failure, size_t rank = 0) {
    const auto& held = *ranks_[rank].held;
    const auto i = std::find_if(held.begin(), held.end(),
                                [](const held_request& each) { return each.verb == "get"; });
    ASSERT_NE(i, held.end());
    auto outcome = storage_outcome{std::vector<ec>(i->batch.count, ec::none)};
    if (failed)
      outcome.pages[*failed] = code;
    answer("get", outcome, rank);
  }

  std::vector<uint64_t> reads(size_t rank = 0) {
    auto counts = std::vector<uint64_t>{};
    for (const auto& each : *ranks_[rank].held)
      if (each.verb == "get")
        counts.push_back(each.batch.count);
    return counts;
  }

  const std::vector<fetched_pages>& fetched(size_t rank = 0) { return ranks_[rank].log->fetched; }

  /// Pages that the prefetcher has, and those that the tree was given: together all, each once.
  void expect_no_page_lost(uint32_t reserve, size_t rank = 0) {
    auto pages = state_of<prefetcher_state>(ranks_[rank].prefetcher).reserve;
    for (const auto& each : fetched(rank))
      pages.insert(pages.end(), each.l2_pages->begin(), each.l2_pages->end());
    EXPECT_EQ(pages.size(), reserve);
    EXPECT_EQ(std::set<page_index>(pages.begin(), pages.end()).size(), pages.size());
    EXPECT_TRUE(state_of<prefetcher_state>(ranks_[rank].prefetcher).fetches.empty());
  }

  test::reply<atom::ok> drain() {
    auto answer = send_request<atom::ok>(ranks_[0].prefetcher, atom::drain_v);
    run();
    return answer;
  }

  rank_counters counters(size_t rank = 0) {
    return ask_value<rank_counters>(ranks_[rank].prefetcher, atom::counters_v);
  }

  std::vector<prefetching_rank> ranks_;
  uint64_t threshold_ = 0;
  /// Set before start().
  storage_traffic traffic_;
  prefetch_rule when_ = prefetch_rule::always;
  /// Of each fetch.
  duration page_compute_{0};
  tier_names tiers_
    = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"memory", "disk"});
};

} // namespace hicache::test
