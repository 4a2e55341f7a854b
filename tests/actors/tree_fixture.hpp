#pragma once

#include "actors/rank_reduction.hpp"
#include "actors/tree.hpp"
#include "hicache/rank_reducer.hpp"
#include "tests/actors/fakes.hpp"

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

namespace hicache::test {

inline constexpr auto step_timeout = caf::timespan{std::chrono::seconds{5}};

/// A tree whose helpers only listen.
struct bare_rank {
  rank_reduction_core_actor rank_reduction;
  tree_core_actor tree;
  std::shared_ptr<recording> log = std::make_shared<recording>();
};

class tree_fixture : public actor_test {
protected:
  ~tree_fixture() override { stop_all(); }

  void start(uint32_t ranks, prefetch_policy policy = prefetch_policy::wait_complete) {
    auto options = tree_options{.page_size = 4,
                                .l1_pages = 16,
                                .l2_pages = 16,
                                .prefetch_reserve_pages = 4,
                                .layers = 1,
                                .prefetch = {.policy = policy, .threshold_tokens = 4},
                                .load_back_threshold_tokens = 4,
                                .storage_attached = true,
                                .pin_budget_pages = 8};
    for (auto& peer : make_local_reducers(ranks)) {
      auto& rank = ranks_.emplace_back();
      rank.rank_reduction = spawn(rank_reduction, std::move(peer));
      const auto listener = spawn(recorder, rank.log);
      rank.tree = spawn(tree, options,
                        tree_helpers{caf::actor_cast<controller_actor>(listener),
                                     rank.rank_reduction,
                                     caf::actor_cast<prefetcher_actor>(listener),
                                     caf::actor_cast<backup_actor>(listener),
                                     caf::actor_cast<engine_actor>(listener),
                                     {},
                                     {},
                                     fences_},
                        &clock, step_timeout);
    }
  }

  test::reply<tree_answers> send(std::vector<tree_operation> list, size_t rank) {
    return send_request<tree_answers>(ranks_[rank].tree, atom::apply_v,
                                      tree_operations{std::move(list)});
  }

  /// Operations on every rank; rank 0's answers.
  tree_answers apply(const std::vector<tree_operation>& list) {
    auto answers = std::vector<test::reply<tree_answers>>{};
    for (auto rank = size_t{0}; rank < ranks_.size(); ++rank)
      answers.push_back(send(list, rank));
    run();
    EXPECT_TRUE(answers.front().get()) << to_string(answers.front().get().error());
    return answers.front().get().value_or(tree_answers{});
  }

  static token_buffer tokens(token_id seed, size_t count = 8) {
    auto list = std::vector<token_id>(count, seed);
    return std::make_shared<const std::vector<token_id>>(std::move(list));
  }

  /// A request from match to release, which leaves one write in flight.
  std::vector<tree_operation> whole_request(request_id id) {
    const auto prompt = tokens(static_cast<token_id>(id));
    return {match_request{id, {}, prompt, 8}, allocate_request{id, 8}, insert_request{id, prompt},
            release_request{id}};
  }

  test::reply<step_result> send_step(size_t rank, caf::timespan wait = caf::timespan{0}) {
    auto answer = send_request<step_result>(ranks_[rank].tree, atom::step_v, wait);
    run();
    return answer;
  }

  std::vector<test::reply<step_result>> step_all(caf::timespan wait = caf::timespan{0}) {
    auto answers = std::vector<test::reply<step_result>>{};
    for (auto rank = size_t{0}; rank < ranks_.size(); ++rank)
      answers.push_back(send_step(rank, wait));
    return answers;
  }

  void done(size_t rank, operation_kind kind, operation_id id, bool ok = true) {
    tell(ranks_[rank].tree, atom::done_v, operation_done{kind, id, ok});
  }

  void all_done(operation_kind kind, operation_id id) {
    for (auto rank = size_t{0}; rank < ranks_.size(); ++rank)
      done(rank, kind, id);
  }

  uint64_t digest(size_t rank) { return state_of<tree_state>(ranks_[rank].tree).core->digest(); }

  rank_counters counters(size_t rank = 0) {
    return ask_value<rank_counters>(ranks_[rank].tree, atom::counters_v);
  }

  match_result match(request_id id, token_id seed) {
    const auto answers = apply({match_request{id, {}, tokens(seed), 8}});
    return std::get<match_result>(*answers.list.front());
  }

  std::deque<bare_rank> ranks_;
  std::shared_ptr<page_fences> fences_;
};

} // namespace hicache::test
