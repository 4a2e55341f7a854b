// hicache-llama: serves a model of the Llama or Qwen families, with its KV in hicache.

#include "base/limits.hpp"
#include "base/try.hpp"
#include "examples/llama/checkpoint.hpp"
#include "examples/llama/completions_server.hpp"
#include "examples/llama/engine.hpp"
#include "hicache/hicache.hpp"
#include "launch/model_folder.hpp"
#include "launch/program.hpp"
#include "launch/rank_session.hpp"
#include "launch/shutdown_watch.hpp"
#include "launch/stop_signal.hpp"
#include "rpc/endpoint.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting_flags.hpp"

#include <caf/scoped_actor.hpp>
#include <spdlog/spdlog.h>

#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

namespace {

using namespace hicache;

struct llama_flags {
  std::string folder;
  std::string listen = "127.0.0.1:8000";
  uint64_t pass_tokens = 512;
  uint64_t max_running = 16;
  std::string role = "both";
  std::vector<std::string> prefill;
  uint64_t handoff_bytes = uint64_t{256} << 20;
};

/// This rank's part of the model.
struct loaded_model {
  llama::model_config config;
  llama::model_weights weights;
  llama::number_format format = llama::number_format::f32;
};

/// Reads the model, and says in the settings of hicache whose KV it is and which shape it has.
result<loaded_model> load_model(const llama_flags& flags, uint32_t rank, uint32_t ranks,
                                rank_config& settings) {
  auto config = llama::read_model_config(flags.folder);
  auto files = config ? llama::checkpoint::open(flags.folder) : tl::unexpected{config.error()};
  auto weights
    = files ? llama::load_weights(*config, *files, rank, ranks) : tl::unexpected{files.error()};
  auto format = llama::parse_kv_format(to_string(settings.dtype.value_or(element_type::fp32)));
  if (!weights || !format)
    return tl::unexpected{weights ? format.error() : weights.error()};
  settings.attention = attention_kind::mha;
  settings.layers = config->layers;
  settings.kv_heads = config->kv_heads;
  settings.head_dim = config->head_dim;
  settings.dtype = settings.dtype.value_or(element_type::fp32);
  if (!llama::has_cuda() && settings.device.kind == device_kind::cuda)
    return fail(ec::unsupported, "--device: this hicache-llama was built without CUDA or cuBLAS; "
                                 "expected host");
  if (!llama::has_cuda())
    settings.device = device_kind::host;
  settings.model_id
    = HICACHE_TRY(settings.model_id.empty() ? read_model_id(flags.folder, weights_read::all)
                                            : result<std::string>{settings.model_id});
  return loaded_model{std::move(*config), std::move(*weights), *format};
}

uint64_t longest_sequence(const llama::model_config& model, const rank_config& settings) {
  return std::min<uint64_t>(model.positions, uint64_t{settings.l1_pages} * settings.page_size);
}

/// The model on the device where hicache has L1's pages. Collective.
result<std::unique_ptr<llama::transformer>>
make_transformer(const rank_runtime& runtime, loaded_model model, const llama::peers& ranks) {
  const auto& pool = runtime.device_buffers();
  auto device = HICACHE_TRY(runtime.device_is_host_addressable()
                              ? llama::make_cpu_processor()
                              : llama::make_cuda_processor(pool.buffers.front().address));
  auto sum = llama::rank_sum{};
  if (ranks.size() > 1)
    sum = [&ranks](std::span<float> values) { ranks.sum(values); };
  auto made
    = std::make_unique<llama::transformer>(std::move(model.config), std::move(model.weights), pool,
                                           model.format, std::move(device), std::move(sum));
  // A pass on the padding page brings the weights to a GPU, and shows whether it has room.
  const auto tokens = std::array{token_id{0}};
  const auto pages = std::array{page_index{0}};
  HICACHE_TRY(made->compute(std::array{llama::slice{tokens, 0, pages, nullptr, true}}));
  return made;
}

/// The API, on rank 0, until a signal arrives. Tells the engine to stop then.
result<void> serve_api(const llama::llama_engine& engine, rank_runtime& runtime,
                       const llama::model_config& model, const rank_config& settings,
                       const llama_flags& flags, const stop_signal& stop,
                       const std::shared_ptr<prometheus::Registry>& registry,
                       std::unique_ptr<llama::completions_server>& server) {
  auto options = llama::server_options{};
  options.listen = flags.listen;
  options.model = std::filesystem::path{flags.folder}.lexically_normal().filename().string();
  options.vocabulary = model.vocabulary;
  options.positions = longest_sequence(model, settings);
  options.registry = registry;
  options.role = flags.role;
  options.ranks = runtime.ranks();
  options.prefill = flags.prefill;
  options.engine = engine;
  server = HICACHE_TRY(llama::completions_server::start(std::move(options)));
  runtime.add_metrics(registry);
  std::printf("listening on %s\n", server->address().c_str());
  std::fflush(stdout);
  while (!stop.wait_for(std::chrono::hours{1}))
    continue;
  spdlog::info("stopping");
  server->stop();
  return {};
}

result<int> serve(const rank_config& settings, const llama_flags& flags, rank_session& session,
                  loaded_model model, const stop_signal& stop) {
  auto watch = shutdown_watch{};
  // The engine starts before the runtime, which reports to it, so it has its own actor system.
  auto configuration = system_config{};
  auto system = caf::actor_system{configuration};
  const auto engine = system.spawn<caf::detached>(llama::engine);
  auto started = rank_runtime::start(settings, std::move(session.peers), engine);
  if (!started) {
    caf::anon_send_exit(engine, caf::exit_reason::user_shutdown);
    return tl::unexpected{started.error()};
  }
  const auto runtime = std::move(*started);
  const auto ranks = started_by_mpirun() ? std::make_unique<llama::peers>(MPI_COMM_WORLD)
                                         : std::make_unique<llama::peers>();
  auto compute = make_transformer(*runtime, std::move(model), *ranks);
  if (!compute) {
    caf::anon_send_exit(engine, caf::exit_reason::user_shutdown);
    return tl::unexpected{compute.error()};
  }
  auto parts = llama::engine_parts{runtime->tree(), compute->get(), ranks.get(), {}};
  parts.schedule.page_size = settings.page_size;
  parts.schedule.pass_tokens = flags.pass_tokens;
  parts.schedule.max_running = flags.max_running;
  parts.schedule.positions = longest_sequence((*compute)->config(), settings);
  parts.schedule.end_tokens = (*compute)->config().end_tokens;
  const auto registry = std::make_shared<prometheus::Registry>();
  // Null for other roles.
  auto sender = result<std::unique_ptr<handoff_sender>>{};
  auto receiver = result<std::unique_ptr<handoff_receiver>>{};
  if (flags.role == "prefill")
    sender = handoff_sender::start(*runtime, settings, flags.handoff_bytes);
  else if (flags.role == "decode")
    receiver = handoff_receiver::start(
      *runtime, settings, [engine] { caf::anon_send(engine, hicache::atom::notify_v); });
  if (!sender || !receiver) {
    caf::anon_send_exit(engine, caf::exit_reason::user_shutdown);
    return tl::unexpected{sender ? receiver.error() : sender.error()};
  }
  parts.sender = sender->get();
  parts.receiver = receiver->get();
  parts.handoff_bytes = &prometheus::BuildGauge()
                           .Name("llama_handoff_bytes")
                           .Help("Memory of rank 0 that receivers may still read.")
                           .Register(*registry)
                           .Add({});
  auto outcome = result<int>{exit_ok};
  auto self = caf::scoped_actor{system};
  auto served = self->request(engine, caf::infinite, llama::atom::serve_v, parts);
  // Ends its requests before the engine that answers them.
  auto server = std::unique_ptr<llama::completions_server>{};
  if (session.rank == 0) {
    spdlog::info("{} ranks; {}", session.ranks, runtime->description());
    if (auto api = serve_api(engine, *runtime, (*compute)->config(), settings, flags, stop,
                             registry, server);
        !api)
      outcome = tl::unexpected{api.error()};
    self->send(engine, llama::atom::stop_v);
  }
  served.receive([](uint64_t turns) { spdlog::info("stopped after {} turns", turns); },
                 [&](const caf::error& err) { outcome = tl::unexpected{from_caf(err)}; });
  server.reset();
  self->send_exit(engine, caf::exit_reason::user_shutdown);
  watch.arm(settings.shutdown_grace + limits::shutdown_slack, exit_ok);
  return outcome;
}

void add_handoff_flags(CLI::App& app, llama_flags& flags) {
  app
    .add_option("--role", flags.role,
                "prefill computes prompts for decode instances, too; decode asks prefill instances")
    ->check(CLI::IsMember({"both", "prefill", "decode"}))
    ->type_name("NAME")
    ->capture_default_str();
  app
    .add_option("--prefill", flags.prefill,
                "decode: prefill instances to ask, in this order, if a request names none")
    ->delimiter(',')
    ->check(CLI::Validator{[](const std::string& text) {
                             const auto where = rpc::parse_endpoint(text);
                             return where ? std::string{} : where.error().detail;
                           },
                           "HOST:PORT[,...]"});
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
  app.add_option("folder", flags.folder, "model: config.json and safetensors")
    ->required()
    ->type_name("FOLDER");
  app.add_option("--listen", flags.listen, "address of the API; port 0 picks a free one")
    ->type_name("HOST:PORT")
    ->capture_default_str();
  app
    .add_option("--pass-tokens", flags.pass_tokens,
                "tokens computed at once: of prompts in parts, and one of each completion")
    ->check(CLI::Range(1, 1'000'000))
    ->capture_default_str();
  app.add_option("--max-running", flags.max_running, "completions computed side by side")
    ->check(CLI::Range(1, 4096))
    ->capture_default_str();
  add_handoff_flags(app, flags);
  add_rank_flags(app, settings);
  auto model = std::optional<loaded_model>{};
  const auto check = [&](const rank_session& session) -> result<void> {
    start_logging(to_string(settings.log_level), session.rank, session.ranks);
    if (session.ranks > 1 && !started_by_mpirun())
      return fail(ec::invalid_argument, "several ranks of this engine need MPI; expected mpirun");
    model = HICACHE_TRY(load_model(flags, session.rank, session.ranks, settings));
    return settings.finish(session.ranks);
  };
  return run_rank_program(app, argc, argv, settings, check, [&](rank_session& session) {
    return serve(settings, flags, session, std::move(*model), stop);
  });
}
