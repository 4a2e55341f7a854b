// hicache-llama: serves a model of the Llama or Qwen families, with its KV in hicache.

#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "examples/llama/completions_server.hpp"
#include "examples/llama/engine.hpp"
#include "hicache/hicache.hpp"
#include "identity/model_folder.hpp"
#include "launch/program.hpp"
#include "launch/rank_session.hpp"
#include "launch/shutdown_watch.hpp"
#include "rpc/endpoint.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting_flags.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace {

using namespace hicache;

struct llama_flags {
  std::string folder;
  /// Some of their values come from the model.
  llama::scheduler_options schedule;
  llama::server_options api;
  uint64_t handoff_bytes = uint64_t{256} << 20;
};

/// This rank's part of the model.
struct loaded_model {
  llama::model_config config;
  llama::model_weights weights;
};

/// Reads the model, and says in the settings of hicache whose KV it is and which shape it has.
result<loaded_model> load_model(const std::string& folder, uint32_t rank, uint32_t ranks,
                                rank_config& settings) {
  const auto config = HICACHE_TRY(llama::read_model_config(folder));
  auto weights = HICACHE_TRY(llama::load_weights(config, folder, rank, ranks));
  settings.attention = attention_kind::mha;
  settings.layers = config.layers;
  settings.kv_heads = config.kv_heads;
  settings.head_dim = config.head_dim;
  settings.dtype = settings.dtype.value_or(element_type::fp32);
  if (settings.dtype == element_type::fp8)
    return fail(ec::invalid_argument, "--dtype: this engine computes with fp16, bf16 or fp32");
  if (settings.model_id.empty())
    settings.model_id = HICACHE_TRY(read_model_id(folder));
  return loaded_model{config, std::move(weights)};
}

/// The model on the device where hicache has L1's pages. Collective.
result<std::unique_ptr<llama::transformer>> make_transformer(const rank_runtime& runtime,
                                                             element_type type, loaded_model model,
                                                             const llama::peers& ranks) {
  const auto& pool = runtime.device_buffers();
  auto device = HICACHE_TRY(runtime.device_is_host_addressable()
                              ? llama::make_cpu_processor()
                              : llama::make_cuda_processor(pool.buffers.front().address));
  auto sum = llama::rank_sum{};
  if (ranks.size() > 1)
    sum = [&ranks](std::span<float> values) { ranks.sum(values); };
  auto made
    = std::make_unique<llama::transformer>(std::move(model.config), std::move(model.weights), pool,
                                           type, std::move(device), std::move(sum));
  // A pass on the padding page brings the weights to a GPU, and shows whether it has room.
  const auto tokens = std::array{token_id{0}};
  const auto pages = std::array{page_index{0}};
  HICACHE_TRY(made->compute(std::array{llama::slice{tokens, 0, pages, nullptr, true}}));
  return made;
}

result<int> serve(const rank_config& settings, llama_flags flags, rank_session& session,
                  loaded_model model, const stop_signal& stop) {
  auto watch = shutdown_watch{};
  // The engine exists before the runtime, which reports to it, so it has its own actor system.
  auto configuration = system_config{};
  auto system = caf::actor_system{configuration};
  auto self = caf::scoped_actor{system};
  const auto engine = caf::actor_cast<engine_actor>(self);
  const auto runtime = HICACHE_TRY(rank_runtime::start(settings, std::move(session.peers), engine));
  const auto ranks = llama::peers{started_by_mpirun() ? MPI_COMM_WORLD : MPI_COMM_NULL};
  const auto compute
    = HICACHE_TRY(make_transformer(*runtime, *settings.dtype, std::move(model), ranks));
  auto& schedule = flags.schedule;
  schedule.page_size = settings.page_size;
  // Of the model, and of the device pool.
  schedule.positions = std::min<uint64_t>(compute->config().positions,
                                          uint64_t{settings.l1_pages} * settings.page_size);
  schedule.end_tokens = compute->config().end_tokens;
  auto& api = flags.api;
  api.registry = std::make_shared<prometheus::Registry>();
  api.model = std::filesystem::path{flags.folder}.lexically_normal().filename().string();
  api.vocabulary = compute->config().vocabulary;
  api.positions = schedule.positions;
  api.engine = caf::actor_cast<caf::actor>(self);
  api.stop = &stop;
  api.ranks = session.ranks;
  auto sender = std::unique_ptr<handoff_sender>{};
  if (api.role == "prefill")
    sender = HICACHE_TRY(handoff_sender::start(*runtime, settings, flags.handoff_bytes));
  auto receiver = std::unique_ptr<handoff_receiver>{};
  if (api.role == "decode")
    receiver = HICACHE_TRY(handoff_receiver::start(
      *runtime, settings, [engine] { caf::anon_send(engine, hicache::atom::notify_v); }));
  auto server = result<std::shared_ptr<llama::completions_server>>{};
  if (session.rank == 0) {
    spdlog::info("{} ranks; {}", session.ranks, runtime->description());
    runtime->add_metrics(api.registry);
    server = llama::start_server(api);
  }
  const auto turns = llama::run_engine(
    self,
    {runtime->tree(), compute.get(), &ranks, schedule, sender.get(), receiver.get(),
     api.registry.get()},
    [&] { return !server || stop.raised(); }); // Without a server it ends, on all ranks.
  spdlog::info("stopped after {} turns", turns.value_or(0));
  if (!server)
    return tl::unexpected{server.error()};
  server->reset();
  watch.arm(settings.shutdown_grace + limits::shutdown_slack, exit_ok);
  return turns.map([](uint64_t) { return exit_ok; });
}

void add_flags(CLI::App& app, llama_flags& flags) {
  auto& api = flags.api;
  app.add_option("folder", flags.folder, "model: config.json and safetensors")
    ->required()
    ->type_name("FOLDER");
  add_flag(app, "listen", "HOST:PORT", &api.listen, "address of the API; port 0 picks a free one",
           {});
  add_flag(app, "pass-tokens", "TOKENS", &flags.schedule.pass_tokens,
           "tokens computed at once: of prompts in parts, and one of each completion",
           {1, 1'000'000});
  add_flag(app, "max-running", "N", &flags.schedule.max_running,
           "completions looked up and computed side by side", {1, 4096});
  app
    .add_option("--role", api.role,
                "prefill computes prompts for decode instances, too; decode asks prefill instances")
    ->check(CLI::IsMember({"both", "prefill", "decode"}))
    ->type_name("NAME")
    ->capture_default_str();
  app
    .add_option("--prefill", api.prefill,
                "decode: prefill instances to ask, in this order, if a request names none")
    ->delimiter(',')
    ->type_name("HOST:PORT[,...]");
  add_bytes_flag(app, "--handoff-memory", flags.handoff_bytes,
                 "prefill: memory of each rank for prompts that receivers are reading",
                 {65536, 1e13});
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto settings = rank_config{};
  auto flags = llama_flags{};
  auto app = CLI::App{"Serves a model with OpenAI's completions API; its KV is in hicache.",
                      "hicache-llama"};
  add_flags(app, flags);
  add_rank_flags(app, settings);
  auto model = loaded_model{};
  const auto check = [&](const rank_session& session) -> result<void> {
    start_logging(to_string(settings.log_level), session.rank, session.ranks);
    if (session.ranks > 1 && !started_by_mpirun())
      return fail(ec::invalid_argument, "several ranks of this engine need MPI; expected mpirun");
    for (const auto& each : flags.api.prefill)
      HICACHE_TRY(about_input("--prefill", rpc::parse_endpoint(each)));
    model = HICACHE_TRY(load_model(flags.folder, session.rank, session.ranks, settings));
    return settings.finish(session.ranks);
  };
  return run_rank_program(app, argc, argv, settings, check, [&](rank_session& session) {
    return serve(settings, flags, session, std::move(model), stop);
  });
}
