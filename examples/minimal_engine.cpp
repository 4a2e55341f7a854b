// The smallest engine on hicache: serves one prompt twice and finds it cached the second time.
//
//     hicache-minimal-engine                       one rank
//     launch/mpirun.sh 2 hicache-minimal-engine    two ranks that share the model's heads
//
// Every rank runs this same program and sends the same operations in the same order: that is all
// hicache asks of an engine.

#include "launch/rank_runtime.hpp"
#include "launch/rank_session.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstdio>
#include <memory>

using namespace hicache;

namespace {

constexpr uint64_t prompt_length = 300;

/// What the engine keeps between messages.
struct engine_state {
  rank_runtime* runtime = nullptr;
  token_buffer prompt;
  request_id request = 0; // Of the last one.
  uint64_t cached = 0;
};

using my_engine = engine_actor::extend<
  // main asks: serve the prompt, and say how many tokens of it were cached.
  caf::replies_to<caf::put_atom>::with<uint64_t>>;

/// "Computes" tokens [begin, end): writes K and V of each layer into the request's pages, at the
/// places that the geometry names.
void compute(rank_runtime& runtime, const std::vector<page_index>& pages, uint64_t begin,
             uint64_t end) {
  const auto& geometry = runtime.device_geometry();
  const auto page_size = uint64_t{geometry.shape().page_size};
  for (auto token = begin; token < end; ++token)
    for (auto layer = 0u; layer < geometry.shape().layers; ++layer)
      for (const auto half : {kv_half::key, kv_half::value}) {
        const auto rows = geometry.rows(layer, half, pages[token / page_size]);
        const auto offset = rows.offset + token % page_size * rows.stride;
        const auto value = std::vector<std::byte>(rows.row_bytes, static_cast<std::byte>(token));
        if (const auto written = runtime.device_pool().write(offset, value); !written)
          std::fprintf(stderr, "%s\n", to_string(written.error()).c_str());
      }
}

my_engine::behavior_type engine(my_engine::stateful_pointer<engine_state> self,
                                rank_runtime* runtime) {
  self->state.runtime = runtime;
  auto tokens = std::vector<token_id>(prompt_length);
  for (auto i = uint64_t{0}; i < prompt_length; ++i)
    tokens[i] = static_cast<token_id>(7 * i + 1);
  self->state.prompt = std::make_shared<const std::vector<token_id>>(std::move(tokens));
  return {
    // The runtime tells the engine what it should know, for example that the ranks have diverged.
    [](atom::notice, const caf::error& what) {
      std::fprintf(stderr, "notice: %s\n", to_string(from_caf(what)).c_str());
    },
    [self](caf::put_atom) -> caf::result<uint64_t> {
      auto& state = self->state;
      auto promise = self->make_response_promise<uint64_t>();
      const auto fail = [promise](const caf::error& err) {
        caf::typed_response_promise<uint64_t>{promise}.deliver(err);
      };
      const auto id = ++state.request;
      // 1. One message opens the request, brings what L2 has to the device, and takes pages for the
      // rest. The last token is not
      //    looked up: its computation yields the first output token. (With an L3 one would send
      //    prefetch_request and schedule_request after the match, and load once a step has reported
      //    the request as ready.)
      auto opening = tree_operations{{match_request{id, {}, state.prompt, prompt_length - 1},
                                      load_request{id}, allocate_request{id, prompt_length}}};
      auto on_open = [self, promise, fail, id](const tree_answers& answers) {
        for (const auto& answer : answers.list)
          if (!answer)
            return fail(to_caf(answer.error()));
        auto& mine = self->state;
        const auto& loaded = std::get<load_result>(*answers.list[1]);
        const auto& pages = *std::get<allocate_result>(*answers.list[2]).device_pages;
        mine.cached = loaded.device_tokens;
        // 2. Before layer n is computed its loaded part must be there. A real engine waits layer by
        // layer.
        for (auto layer = 0u; loaded.progress && layer < loaded.progress->layers(); ++layer)
          loaded.progress->wait(layer);
        compute(*mine.runtime, pages, mine.cached, prompt_length);
        // 3. Give the computed pages to the tree, which keeps what is new, and close the request.
        auto closing = tree_operations{{insert_request{id, mine.prompt}, release_request{id}}};
        // 4. A step turns what finished meanwhile, such as the copy to L2, into facts that all
        // ranks share.
        auto on_step
          = [self, promise](const step_result&) mutable { promise.deliver(self->state.cached); };
        auto on_closed = [self, fail, on_step](const tree_answers&) {
          self
            ->request(self->state.runtime->tree(), caf::infinite, atom::step_v,
                      caf::timespan{std::chrono::seconds{1}})
            .then(on_step, fail);
        };
        self->request(mine.runtime->tree(), caf::infinite, atom::apply_v, std::move(closing))
          .then(on_closed, fail);
      };
      self->request(state.runtime->tree(), caf::infinite, atom::apply_v, std::move(opening))
        .then(on_open, fail);
      return promise;
    },
  };
}

result<int> run(const rank_config& config, rank_session& session) {
  // The agreement duplicates the engine's MPI communicator; hicache never uses the engine's own.
  auto runtime = rank_runtime::start(config, std::move(session.peers));
  if (!runtime)
    return tl::unexpected{runtime.error()};
  auto self = caf::scoped_actor{(*runtime)->system()};
  auto mine = self->spawn(engine, runtime->get());
  auto cached = uint64_t{0};
  for (auto round = 1; round <= 2; ++round) {
    self->request(mine, caf::infinite, caf::put_atom_v)
      .receive([&](uint64_t tokens) { cached = tokens; },
               [](const caf::error& err) {
                 std::fprintf(stderr, "%s\n", to_string(from_caf(err)).c_str());
               });
    if (session.rank == 0)
      std::printf("round %d: %lu of %lu tokens were cached\n", round, cached, prompt_length);
  }
  self->send_exit(mine, caf::exit_reason::user_shutdown);
  self->wait_for(mine);
  // All whole pages of the prompt, short of its last token.
  return cached == (prompt_length - 1) / config.page_size * config.page_size ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  auto config = rank_config{}; // Defaults: a tiny model, 64 tokens per page, host memory where
                               // there is no GPU.
  auto app = CLI::App{"The smallest engine on hicache.", "hicache-minimal-engine"};
  add_rank_flags(app, config);
  return run_rank_program(
    app, argc, argv, [&](const rank_session& session) { return config.finish(session.ranks); },
    [&](rank_session& session) { return run(config, session); });
}
