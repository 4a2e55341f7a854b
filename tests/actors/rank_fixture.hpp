#pragma once

#include "actors/attachment.hpp"
#include "actors/backup.hpp"
#include "actors/controller.hpp"
#include "actors/prefetcher.hpp"
#include "actors/rank_reduction.hpp"
#include "actors/storage.hpp"
#include "actors/tree.hpp"
#include "backends/storage_queue.hpp"
#include "hicache/rank_reducer.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
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

/// An instance of several ranks, complete and with real bytes: host memory for L1 and L2, stores in
/// memory for all. Copies and storage work when their actor is scheduled, so the schedule alone
/// decides when anything happens. The backend "shared" is attached from the start if the options
/// say so.
class rank_world : public actor_world {
public:
  rank_world(uint32_t count, const tree_options& options,
             caf::timespan step_timeout = std::chrono::seconds{5})
    : shape_{attention_kind::mha, options.layers, 1, 4, 4, 2, options.page_size},
      options_(options) {
    notices_ = spawn(recorder, log);
    auto peers = make_local_reducers(count);
    for (auto i = uint32_t{0}; i < count; ++i)
      add_rank(i, count, std::move(peers[i]), step_timeout);
  }

  ~rank_world() {
    stop_all();
    for (const auto& each : ranks)
      each->gate->held.clear(); // A promise keeps its actor.
  }

  static constexpr auto patience = caf::timespan{std::chrono::seconds{5}};

  struct rank {
    rank(uint32_t which, const pool_shape& shape, const tree_options& options)
      : number(which), l1(shape, host_layout::layer_first, options.l1_pages + 1),
        l2(shape, host_layout::page_first, options.l2_pages + 1) {}

    uint32_t number;
    pool_geometry l1;
    pool_geometry l2;
    std::unique_ptr<device> machine;
    std::unique_ptr<device_memory> l1_memory;
    std::unique_ptr<device_memory> l2_memory;
    controller_actor controller;
    rank_reduction_core_actor rank_reduction;
    prefetcher_actor prefetcher;
    backup_actor backup;
    tree_core_actor tree;
    attachment_actor attachment;
    storage_gate_ptr gate = std::make_shared<storage_gate>();
    uint32_t stores_open = 0;
    /// What the open store was told to change to, and changes that are prepared only.
    std::string configuration;
    uint32_t prepared = 0;
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
    for (auto i = 0; i < 100; ++i) {
      if (!step().in_flight)
        return;
      advance(std::chrono::milliseconds{500}); // Writes that failed are tried again.
    }
    ADD_FAILURE() << "something is in flight for ever";
  }

  // -- L3 comes and goes ------------------------------------------------------

  /// Asks rank 0 to attach a backend, or none; nothing is delivered yet.
  reply<atom::ok> send_attach(const std::string& backend,
                              caf::timespan time = std::chrono::seconds{1},
                              const std::string& configuration = {}) {
    return send_request<atom::ok>(ranks.front()->attachment, atom::attach_v,
                                  storage_attachment{backend, configuration, {}}, time);
  }

  /// Requests to the storage of a rank wait from now on.
  void close_gate(uint32_t of) { ranks[of]->gate->is_open = false; }

  /// Those that waited pass, and all that come.
  void open_gate(uint32_t of) {
    const auto gate = ranks[of]->gate;
    gate->is_open = true;
    const auto pass = [gate, behind = behind_[of]](auto* self) { pass_gate(self, gate, behind); };
    for (auto i = gate->held.size(); i > 0; --i)
      caf::anon_send(caf::actor_cast<caf::actor>(stores_[of]), errand{pass});
    run();
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

  /// With all requests closed and nothing in flight: each page has one place, and the reserve is
  /// full, or empty without a store.
  void expect_nothing_lost() const {
    for (const auto& each : ranks) {
      core_of(*each).check_invariants();
      const auto stats = core_of(*each).stats();
      EXPECT_EQ(stats.requests_open, 0u);
      EXPECT_EQ(stats.l1_protected, 0u);
      EXPECT_EQ(stats.l1_free + stats.l1_evictable, options_.l1_pages);
      const auto& backups = state_of<backup_state>(each->backup);
      EXPECT_TRUE(backups.window.is_idle() && backups.commands.empty());
      const auto& prefetcher = state_of<prefetcher_state>(each->prefetcher);
      EXPECT_TRUE(prefetcher.fetches.empty());
      EXPECT_EQ(prefetcher.queries_in_flight, 0u);
      EXPECT_TRUE(each->gate->held.empty());
      auto reserve = prefetcher.reserve;
      std::sort(reserve.begin(), reserve.end());
      EXPECT_EQ(std::adjacent_find(reserve.begin(), reserve.end()), reserve.end());
      EXPECT_EQ(reserve.size(), is_attached(*each) ? options_.prefetch_reserve_pages : 0);
      EXPECT_EQ(each->stores_open, is_attached(*each) ? 1u : 0u);
    }
  }

  static bool is_attached(const rank& x) {
    return !state_of<attachment_state>(x.attachment).options.attached.backend.empty();
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

  /// The backends "shared" and "other".
  shared_store store{clock};
  shared_store other_store{clock};
  /// Why a rank cannot open a store or prepare its change; null: it can.
  std::function<result<void>(uint32_t which)> on_open;
  std::vector<std::unique_ptr<rank>> ranks;
  /// What the engines were told unasked.
  std::shared_ptr<recording> log = std::make_shared<recording>();

private:
  void add_rank(uint32_t number, uint32_t count, std::unique_ptr<rank_reducer> peer,
                caf::timespan step_timeout) {
    auto& x = *ranks.emplace_back(std::make_unique<rank>(number, shape_, options_));
    x.machine = std::move(*make_device(device_kind::host));
    x.l1_memory = std::move(*x.machine->allocate(x.l1.total_bytes()));
    x.l2_memory = std::move(*x.machine->allocate_host(x.l2.total_bytes(), {}));
    auto copies = x.machine->make_copy_engine(
      device_layers::of(x.l1, std::bit_cast<uint64_t>(x.l1_memory->data())), x.l2, *x.l2_memory,
      {.inline_copies = true});
    const auto bytes = x.l2.page_bytes();
    constexpr auto storage_timeout = caf::timespan{std::chrono::seconds{1}};
    x.controller = spawn(controller, std::move(*copies), bytes, nullptr);
    x.rank_reduction = spawn(rank_reduction, std::move(peer));
    auto attached = storage_attachment{"", "", "wait_complete"};
    auto opened = open_store{};
    if (options_.storage_attached) {
      attached.backend = "shared";
      opened = *open_on(x, attached);
    }
    x.prefetcher = spawn(prefetcher, prefetcher_options{storage_timeout, bytes}, opened.actor,
                         x.rank_reduction);
    x.backup = spawn(backup, opened.actor, backup_options{storage_timeout, bytes});
    x.tree = spawn(tree, options_,
                   tree_helpers{x.controller, x.rank_reduction, x.prefetcher, x.backup,
                                caf::actor_cast<engine_actor>(notices_)},
                   &clock, step_timeout);
    x.attachment
      = spawn(attachment,
              attachment_options{
                number, count, [this, &x](const auto& wanted) { return open_on(x, wanted); },
                [this, &x](const auto& wanted, caf::timespan) { return prepare_on(x, wanted); },
                attached, opened, patience},
              attachment_peers{x.tree, x.prefetcher, x.backup, x.rank_reduction});
  }

  result<open_store> open_on(rank& x, const storage_attachment& wanted) {
    if (on_open)
      if (const auto can = on_open(x.number); !can)
        return tl::unexpected{can.error()};
    auto& pages = wanted.backend == "other" ? other_store : store;
    const auto objects
      = std::make_shared<const page_objects>("model=test", x.l2.head_groups(x.number, 1), x.l2,
                                             x.l2_memory->data(), page_writers{}, nullptr);
    const auto behind = spawn_inside(storage, storage_options{objects, &clock},
                                     std::make_unique<storage_queue>(pages.open(), 0));
    const auto front = spawn_inside(gated_storage, x.gate, behind);
    behind_[x.number] = behind;
    stores_[x.number] = caf::actor_cast<storage_actor>(front);
    ++x.stores_open;
    return open_store{stores_[x.number], options_.prefetch, false, [&x, behind, front] {
                        EXPECT_TRUE(x.gate->held.empty()) << "a store is closed in use";
                        --x.stores_open;
                        caf::anon_send_exit(front, caf::exit_reason::user_shutdown);
                        caf::anon_send_exit(behind, caf::exit_reason::user_shutdown);
                      }};
  }

  result<store_change> prepare_on(rank& x, const storage_attachment& wanted) {
    if (on_open)
      if (const auto can = on_open(x.number); !can)
        return tl::unexpected{can.error()};
    ++x.prepared;
    return store_change{[&x, config = wanted.extra_config] {
                          --x.prepared;
                          x.configuration = config;
                        },
                        [&x] { --x.prepared; }};
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
  /// The storage of each rank: what its users know, and what is behind the gate.
  std::map<uint32_t, storage_actor> stores_;
  std::map<uint32_t, storage_actor> behind_;
};

} // namespace hicache::test
