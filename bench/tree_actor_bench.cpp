// A match request through the tree actor, compared with a request to an actor that does nothing.
//
// What: one round trip; the tree's contains a match that finds all its tokens, and its release.
// Vary: the sender: a blocking thread (wall time), or another actor on the same thread (CPU time).
// Read: through run.sh, which compares each figure with its baseline of the same run.

#include "actors/controller.hpp"
#include "actors/rank_reduction.hpp"
#include "actors/tree.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "bench/chat.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/system_config.hpp"

#include <benchmark/benchmark.h>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>

#include <bit>
#include <memory>
#include <utility>

namespace hicache::bench {

namespace {

constexpr uint32_t page_size = 64;

/// Answers immediately.
using bare_actor = caf::typed_actor<caf::replies_to<atom::get>::with<atom::ok>>;

bare_actor::behavior_type bare() {
  return {[](atom::get) { return atom::ok_v; }};
}

/// One scheduler thread, a tree filled with the workload "chat", and the actors it needs.
class world {
public:
  world() {
    settings_.set("scheduler.max-threads", 1);
    system_ = std::make_unique<caf::actor_system>(settings_);
    self_ = std::make_unique<caf::scoped_actor>(*system_);
    idle = system_->spawn(bare);
    spawn_tree();
    for (const auto& turn : chat::instance().all())
      ask(tree_operations{{match_request{.request = 1, .tokens = turn.asked},
                           allocate_request{1, turn.told->size()},
                           insert_request{.request = 1, .tokens = turn.told}, release_request{1}}});
  }

  ~world() {
    for (const auto& actor :
         {caf::actor_cast<caf::actor>(idle), caf::actor_cast<caf::actor>(tree),
          caf::actor_cast<caf::actor>(controller_), caf::actor_cast<caf::actor>(rank_reduction_)}) {
      (*self_)->send_exit(actor, caf::exit_reason::user_shutdown);
      (*self_)->wait_for(actor);
    }
  }

  /// Match of all tokens of the next turn, and its release.
  tree_operations next_match() {
    const auto& turns = chat::instance().all();
    const auto& turn = turns[asked_++ % turns.size()];
    return {{match_request{.request = 1, .tokens = turn.told, .limit = turn.told->size()},
             release_request{1}}};
  }

  void ask(tree_operations operations) {
    (*self_)
      ->request(tree, caf::infinite, atom::apply_v, std::move(operations))
      .receive([](const tree_answers& answers) { check(answers); },
               [](const caf::error&) { HICACHE_CHECK(false); });
  }

  void ask_idle() {
    (*self_)
      ->request(idle, caf::infinite, atom::get_v)
      .receive([](atom::ok) {}, [](const caf::error&) { HICACHE_CHECK(false); });
  }

  static void check(const tree_answers& answers) {
    for (const auto& answer : answers.list)
      HICACHE_CHECK(answer);
  }

  caf::actor_system& system() { return *system_; }

  caf::scoped_actor& self() { return *self_; }

  bare_actor idle;
  tree_core_actor tree;

private:
  void spawn_tree() {
    auto options = tree_options{};
    options.page_size = page_size;
    options.l1_pages = static_cast<uint32_t>(2 * chat::instance().new_tokens() / page_size);
    // Without L2 no bytes are copied, but the tree requires a controller.
    const auto shape = pool_shape{attention_kind::mha, 1, 1, 1, 1, 1, page_size};
    const auto pool = pool_geometry{shape, host_layout::layer_first, 2};
    machine_ = std::move(*make_device(device_kind::host));
    l1_ = std::move(*machine_->allocate(pool.total_bytes()));
    l2_ = std::move(*machine_->allocate_host(pool.total_bytes(), {}));
    auto copies
      = machine_->make_copy_engine(device_layers::of(pool, std::bit_cast<uint64_t>(l1_->data())),
                                   pool, *l2_, {.inline_copies = true});
    controller_ = system_->spawn(controller, std::move(*copies), pool.page_bytes(), nullptr);
    rank_reduction_ = system_->spawn(rank_reduction, std::move(make_local_reducers(1).front()));
    tree = system_->spawn(hicache::tree, options,
                          tree_helpers{controller_, rank_reduction_, {}, {}, {}}, &clock_,
                          caf::timespan{limits::step_timeout});
  }

  system_config settings_;
  monotonic_clock clock_;
  std::unique_ptr<device> machine_;
  std::unique_ptr<device_memory> l1_;
  std::unique_ptr<device_memory> l2_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<caf::scoped_actor> self_;
  controller_actor controller_;
  rank_reduction_core_actor rank_reduction_;
  size_t asked_ = 0;
};

// -- a blocking thread --------------------------------------------------------

void blocking_bare(benchmark::State& state, world& here) {
  for (auto _ : state)
    here.ask_idle();
}

void blocking_match(benchmark::State& state, world& here) {
  for (auto _ : state)
    here.ask(here.next_match());
}

// -- an actor -----------------------------------------------------------------

/// Sends requests until the benchmark ends. `state` is shared across threads only at start and end.
template <class Ask>
void ask_again(caf::event_based_actor* self, benchmark::State* state, Ask ask) {
  if (!state->KeepRunning())
    return self->quit();
  ask(self, [self, state, ask] { ask_again(self, state, ask); });
}

template <class Ask>
void run_as_actor(benchmark::State& state, world& here, Ask ask) {
  const auto asker = here.system().spawn(
    [&state, ask](caf::event_based_actor* self) { ask_again(self, &state, ask); });
  here.self()->wait_for(asker);
}

void actor_bare(benchmark::State& state, world& here) {
  run_as_actor(state, here, [&here](caf::event_based_actor* self, auto next) {
    self->request(here.idle, caf::infinite, atom::get_v)
      .then([next](atom::ok) { next(); }, [](const caf::error&) { HICACHE_CHECK(false); });
  });
}

void actor_match(benchmark::State& state, world& here) {
  run_as_actor(state, here, [&here](caf::event_based_actor* self, auto next) {
    self->request(here.tree, caf::infinite, atom::apply_v, here.next_match())
      .then(
        [next](const tree_answers& answers) {
          world::check(answers);
          next();
        },
        [](const caf::error&) { HICACHE_CHECK(false); });
  });
}

void run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  auto here = world{};
  const auto add = [&here](const char* name, auto* body) {
    return benchmark::RegisterBenchmark(
      name, [&here, body](benchmark::State& state) { body(state, here); });
  };
  // Wall time, because a blocking thread waits for others; an actor on the same thread does not.
  add("blocking_bare", blocking_bare)->UseRealTime();
  add("blocking_match", blocking_match)->UseRealTime();
  add("actor_bare", actor_bare)->MeasureProcessCPUTime();
  add("actor_match", actor_match)->MeasureProcessCPUTime();
  benchmark::RunSpecifiedBenchmarks();
}

} // namespace

} // namespace hicache::bench

int main(int argc, char** argv) {
  hicache::bench::run(argc, argv);
}
