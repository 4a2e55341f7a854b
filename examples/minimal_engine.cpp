// The smallest engine on hicache: serves one prompt twice and finds it cached the second time. Run
// it alone, or on two ranks: launch/mpirun.sh 2 build/release/bin/hicache-minimal-engine
//
// Every rank sends the same operations in the same order (docs/integrating.md).

#include <caf/scoped_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <mpi.h>

#include <hicache/hicache.hpp>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>

CAF_ADD_ATOM(minimal_engine, minimal_engine, serve, "serve")

using namespace hicache;

namespace {

constexpr uint64_t prompt_length = 300;

/// The engine actor, which also serves a prompt and answers with the number of cached tokens.
using my_engine = engine_actor::extend<caf::replies_to<minimal_engine::serve>::with<uint64_t>>;

void complain(const caf::error& what) {
  std::fprintf(stderr, "%s\n", to_string(from_caf(what)).c_str());
}

struct engine_state {
  explicit engine_state(my_engine::pointer owner) : self(owner) {}

  /// 1. Opens a request. The last token is not looked up: its output is the first new token.
  caf::result<uint64_t> serve() {
    ++request;
    answer = self->make_response_promise<uint64_t>();
    apply({match_request{request, {}, prompt, prompt_length - 1}, // Longest prefix in L1 and L2.
           prefetch_request{request},                             // Look for the rest in L3.
           schedule_request{request}},                            // Ready now, or in a later step.
          [this](const tree_answers& answers) {
            std::get<schedule_result>(*answers.list[2]).ready ? load() : step();
          });
    return answer;
  }

  /// 2. Loads the L2 part to L1, and allocates pages for the tokens to compute.
  void load() {
    apply({load_request{request}, allocate_request{request, prompt_length}},
          [this](const tree_answers& answers) { compute(answers); });
  }

  /// 3. "Computes" the uncached pages: fills K and V at the addresses given by the geometry.
  void compute(const tree_answers& answers) {
    const auto& loaded = std::get<load_result>(*answers.list[0]);
    const auto& pages = *std::get<allocate_result>(*answers.list[1]).l1_pages;
    const auto& pool = (*runtime)->device_geometry();
    cached = loaded.l1_tokens;
    for (auto layer = 0u; layer < pool.shape().layers; ++layer) {
      if (loaded.progress && !loaded.progress->wait(layer)) // Until the cached part is in L1.
        return fail(to_caf({ec::copy_failed, "loading from L2"}));
      for (auto page = cached / pool.shape().page_size; page < pages.size(); ++page)
        for (const auto part : pool.parts()) {
          const auto rows = pool.rows(layer, part, pages[page]);
          const auto bytes = std::vector<std::byte>(rows.rows * rows.stride, std::byte{7});
          if (const auto done = (*runtime)->l1_pool().write(rows.offset, bytes); !done)
            return fail(to_caf(done.error()));
        }
    }
    // 4. Insert the pages into the tree, which copies them to L2, and close the request. The writes
    // are done; an engine whose kernels are still queued passes an event (docs/integrating.md).
    apply({insert_request{request, prompt}, release_request{request}},
          [this](const tree_answers&) { step(); });
  }

  /// 5. Makes completions a fact on all ranks at once. A busy engine steps once a turn.
  void step() {
    auto on_step = [this](const step_result& facts) {
      if (!facts.ready.empty())
        load();
      else if (facts.in_flight)
        step();
      else
        answer.deliver(cached);
    };
    self->request((*runtime)->tree(), caf::infinite, atom::step_v, caf::timespan{50'000'000})
      .then(on_step, [this](const caf::error& err) { fail(err); });
  }

  /// Sends the operations of one turn and continues with `next` if all succeed.
  void apply(std::vector<tree_operation> ops, std::function<void(const tree_answers&)> next) {
    auto on_answers = [this, next](const tree_answers& answers) {
      for (const auto& each : answers.list)
        if (!each)
          return fail(to_caf(each.error()));
      next(answers);
    };
    self->request((*runtime)->tree(), caf::infinite, atom::apply_v, tree_operations{std::move(ops)})
      .then(on_answers, [this](const caf::error& err) { fail(err); });
  }

  void fail(const caf::error& why) { answer.deliver(why); }

  my_engine::pointer self;
  std::unique_ptr<rank_runtime>* runtime = nullptr;
  token_buffer prompt = std::make_shared<const std::vector<token_id>>(prompt_length, 7);
  request_id request = 0;
  uint64_t cached = 0;
  caf::typed_response_promise<uint64_t> answer;
};

my_engine::behavior_type engine(my_engine::stateful_pointer<engine_state> self,
                                std::unique_ptr<rank_runtime>* runtime) {
  self->state.runtime = runtime;
  return {
    [](atom::notice, const caf::error& what) { complain(what); },
    [](atom::notify) {},                          // For engines that sleep between steps.
    [](atom::events, const cache_events_ptr&) {}, // For routers; off unless the options ask for it.
    [self](minimal_engine::serve) { return self->state.serve(); },
  };
}

/// Starts the rank and serves the prompt twice.
result<int> run(const rank_config& config, std::unique_ptr<rank_reducer> peers) {
  // The engine starts before the runtime, which reports to it, so it has its own actor system.
  auto settings = system_config{};
  auto system = caf::actor_system{settings};
  auto runtime = std::unique_ptr<rank_runtime>{};
  const auto mine = system.spawn(engine, &runtime);
  if (auto started = rank_runtime::start(config, std::move(peers), mine); started)
    runtime = std::move(*started);
  else
    return tl::unexpected{started.error()};
  auto self = caf::scoped_actor{system};
  auto cached = uint64_t{0};
  for (auto round = 1; round <= 2; ++round) {
    self->request(mine, caf::infinite, minimal_engine::serve_v)
      .receive([&](uint64_t x) { cached = x; }, complain);
    if (runtime->rank() == 0)
      std::printf("round %d: %lu of %lu tokens were cached\n", round, cached, prompt_length);
  }
  self->send_exit(mine, caf::exit_reason::user_shutdown);
  return cached > 0 ? 0 : 1;
}

result<int> run_rank(int* argc, char*** argv) {
  auto mpi = std::optional<mpi_session>{}; // Outlives the reducer.
  auto peers = std::move(make_local_reducers(1).front());
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    auto started = mpi_session::start(argc, argv);
    if (!started)
      return tl::unexpected{started.error()};
    mpi = std::move(*started);
    auto joined = make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD));
    if (!joined)
      return tl::unexpected{joined.error()};
    peers = std::move(*joined);
  }
  auto config = rank_config{}; // A tiny model; host memory where there is no GPU.
  if (auto valid = config.finish(peers->size()); !valid)
    return tl::unexpected{valid.error()};
  return run(config, std::move(peers));
}

} // namespace

int main(int argc, char** argv) {
  const auto code = run_rank(&argc, &argv);
  if (!code)
    std::fprintf(stderr, "%s\n", to_string(code.error()).c_str());
  return code.value_or(1);
}
