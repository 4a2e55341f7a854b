#pragma once

#include "actors/backup.hpp"
#include "actors/consensus.hpp"
#include "actors/controller.hpp"
#include "actors/prefetcher.hpp"
#include "actors/storage.hpp"
#include "actors/tree.hpp"
#include "tests/actors/fakes.hpp"
#include "transport/local_agreement.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

namespace hicache::test {

using tokens_t = std::vector<token_id>;

/// `count` tokens, each a function of `seed` and its place.
inline tokens_t make_tokens(token_id seed, uint64_t count) {
  auto tokens = tokens_t(count);
  for (auto i = uint64_t{0}; i < count; ++i)
    tokens[i] = seed * 1000 + static_cast<token_id>(i);
  return tokens;
}

inline token_buffer buffer_of(const tokens_t& tokens) {
  return std::make_shared<const tokens_t>(tokens);
}

/// An instance of several ranks, complete and with real bytes: host memory for L1 and L2, one store
/// in memory for all. Copies and storage work when their actor is scheduled, so the schedule alone
/// decides when anything happens.
class rank_world : public actor_world {
public:
  rank_world(uint32_t count, const tree_options& options,
             caf::timespan step_timeout = std::chrono::seconds{5})
    : shape_{attention_kind::mha, options.layers, 1, 4, 4, 2, options.page_size},
      options_(options) {
    notices_ = spawn(recorder, log);
    auto peers = make_local_agreements(count);
    for (auto i = uint32_t{0}; i < count; ++i)
      add_rank(i, std::move(peers[i]), step_timeout);
  }

  ~rank_world() { stop_all(); }

  struct rank {
    rank(uint32_t which, const pool_shape& shape, const tree_options& options)
      : number(which), l1(shape, host_layout::layer_first, options.device_pages + 1),
        l2(shape, host_layout::page_first, options.host_pages + 1) {}

    uint32_t number;
    pool_geometry l1;
    pool_geometry l2;
    std::unique_ptr<device> machine;
    std::unique_ptr<device_memory> l1_memory;
    std::unique_ptr<device_memory> l2_memory;
    controller_actor controller;
    consensus_actor consensus;
    storage_actor storage;
    prefetcher_actor prefetcher;
    backup_actor backup;
    tree_actor tree;
  };

  // -- what engines do, the same on every rank --------------------------------

  std::vector<reply<tree_answers>> send_operations(const std::vector<tree_operation>& list) {
    auto answers = std::vector<reply<tree_answers>>{};
    for (const auto& each : ranks)
      answers.push_back(
        send_request<tree_answers>(each->tree, atom::apply_v, tree_operations{list}));
    return answers;
  }

  std::vector<reply<step_result>> send_step(caf::timespan wait = caf::timespan{0}) {
    auto answers = std::vector<reply<step_result>>{};
    for (const auto& each : ranks)
      answers.push_back(send_request<step_result>(each->tree, atom::step_v, wait));
    return answers;
  }

  /// One operation, everywhere; answered with rank 0's answer.
  template <class Result>
  result<Result> apply(const tree_operation& operation) {
    const auto answers = send_operations({operation});
    run();
    auto first = answers.front().get();
    if (!first)
      return tl::unexpected{first.error()};
    auto& answer = first->list.front();
    if (!answer)
      return tl::unexpected{answer.error()};
    return std::get<Result>(*answer);
  }

  /// A step, everywhere. All ranks must see the same.
  step_result step() {
    const auto answers = send_step();
    run();
    const auto first = answers.front().get();
    EXPECT_TRUE(first) << to_string(first.error());
    for (const auto& each : answers) {
      const auto other = each.get();
      EXPECT_TRUE(other) << to_string(other.error());
      if (first && other) {
        EXPECT_EQ(other->ready.size(), first->ready.size());
        EXPECT_EQ(other->in_flight, first->in_flight);
      }
    }
    expect_equal_digests();
    return first ? *first : step_result{};
  }

  /// Steps until nothing is in flight.
  void settle() {
    for (auto i = 0; i < 100; ++i)
      if (!step().in_flight)
        return;
    ADD_FAILURE() << "something is in flight for ever";
  }

  // -- bytes ------------------------------------------------------------------

  /// Gives a whole page of a request the bytes that follow from its prefix and its place.
  void compute(const rank& on, const tokens_t& tokens, page_index page, uint64_t position) const {
    visit_page(on, tokens, page, position,
               [](std::byte* at, std::byte expected) { *at = expected; });
  }

  /// Whether a page of a request holds these bytes.
  bool holds(const rank& on, const tokens_t& tokens, page_index page, uint64_t position) const {
    auto same = true;
    visit_page(on, tokens, page, position,
               [&](const std::byte* at, std::byte expected) { same = same && *at == expected; });
    return same;
  }

  // -- what must hold ---------------------------------------------------------

  uint64_t digest_of(const rank& x) const { return core_of(x).digest(); }

  static const prefix_cache& core_of(const rank& x) { return *state_of<tree_state>(x.tree).core; }

  void expect_equal_digests() const {
    for (const auto& each : ranks)
      EXPECT_EQ(digest_of(*each), digest_of(*ranks.front()));
  }

  /// With all requests closed and nothing in flight: each page has one place, the reserve is full.
  void expect_nothing_lost() const {
    for (const auto& each : ranks) {
      core_of(*each).check_invariants();
      const auto stats = core_of(*each).stats();
      EXPECT_EQ(stats.requests_open, 0u);
      EXPECT_EQ(stats.device_protected, 0u);
      EXPECT_EQ(stats.device_free + stats.device_evictable, options_.device_pages);
      const auto& prefetcher = state_of<prefetcher_state>(each->prefetcher);
      EXPECT_TRUE(prefetcher.fetches.empty());
      auto reserve = prefetcher.reserve;
      std::sort(reserve.begin(), reserve.end());
      EXPECT_EQ(std::adjacent_find(reserve.begin(), reserve.end()), reserve.end());
      EXPECT_EQ(reserve.size(), options_.prefetch_reserve_pages);
    }
  }

  rank_counters counters() {
    auto total = rank_counters{};
    for (const auto& each : ranks) {
      total += ask_value<rank_counters>(each->tree, atom::counters_v);
      total += ask_value<rank_counters>(each->controller, atom::counters_v);
      total += ask_value<rank_counters>(each->prefetcher, atom::counters_v);
      total += ask_value<rank_counters>(each->backup, atom::counters_v);
    }
    return total;
  }

  uint64_t page_bytes() const { return ranks.front()->l2.page_bytes(); }

  shared_store store{clock};
  std::vector<std::unique_ptr<rank>> ranks;
  /// What the engines were told unasked.
  std::shared_ptr<recording> log = std::make_shared<recording>();

private:
  void add_rank(uint32_t number, std::unique_ptr<agreement> peer, caf::timespan step_timeout) {
    auto& x = *ranks.emplace_back(std::make_unique<rank>(number, shape_, options_));
    x.machine = std::move(*make_device(device_kind::host));
    x.l1_memory = std::move(*x.machine->allocate(x.l1.total_bytes()));
    x.l2_memory = std::move(*x.machine->allocate_host(x.l2.total_bytes(), {}));
    auto copies = x.machine->make_copy_engine(
      device_layers::of(x.l1, std::bit_cast<uint64_t>(x.l1_memory->data())), x.l2, *x.l2_memory,
      {.inline_copies = true});
    const auto bytes = x.l2.page_bytes();
    constexpr auto storage_timeout = caf::timespan{std::chrono::seconds{1}};
    x.controller = spawn(controller, std::move(*copies), bytes);
    x.consensus = spawn(consensus, std::move(peer));
    x.storage = spawn(storage,
                      storage_options{"model=test", "heads " + std::to_string(number) + "+1", x.l2,
                                      x.l2_memory->data(), &clock},
                      std::make_unique<storage_queue>(store.open(), 0));
    const auto threshold
      = (options_.prefetch_threshold_tokens + options_.page_size - 1) / options_.page_size;
    x.prefetcher = spawn(prefetcher, prefetcher_options{threshold, storage_timeout, bytes},
                         x.storage, x.consensus);
    x.backup = spawn(backup, x.storage, storage_timeout, bytes);
    x.tree = spawn(tree, options_,
                   tree_helpers{x.controller, x.consensus, x.prefetcher, x.backup,
                                caf::actor_cast<engine_actor>(notices_)},
                   &clock, step_timeout);
  }

  template <class Visit>
  void visit_page(const rank& on, const tokens_t& tokens, page_index page, uint64_t position,
                  Visit visit) const {
    auto word = 14695981039346656037u ^ on.number;
    for (auto i = uint64_t{0}; i < (position + 1) * options_.page_size; ++i)
      word = (word ^ tokens[i]) * 1099511628211u;
    for (auto layer = uint32_t{0}; layer < shape_.layers; ++layer)
      for (const auto part : on.l1.parts()) {
        const auto rows = on.l1.rows(layer, part, page);
        for (auto row = uint64_t{0}; row < rows.rows; ++row)
          for (auto i = uint64_t{0}; i < rows.row_bytes; ++i) {
            word = word * 6364136223846793005u + 1442695040888963407u;
            visit(on.l1_memory->data() + rows.offset + row * rows.stride + i,
                  static_cast<std::byte>(word >> 56));
          }
      }
  }

  pool_shape shape_;
  tree_options options_;
  caf::actor notices_;
};

} // namespace hicache::test
