#include "launch/replay_program.hpp"

#include "base/try.hpp"
#include "base/units.hpp"
#include "launch/program.hpp"
#include "launch/replay_engine.hpp"
#include "launch/replay_metrics.hpp"
#include "launch/replay_report.hpp"
#include "launch/replay_workload.hpp"
#include "launch/shutdown_watch.hpp"
#include "launch/status_line.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/rank_config.hpp"

#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace hicache {

namespace {

struct replay_flags {
  /// Those that a flag sets directly.
  replay_options options;
  std::string trace;
  uint64_t limit = 0;
  std::string workload;
  multi_turn_workload turns;
  std::string order = "closed";
  std::string verify = "sample";
  std::string sessions = "off";
  std::string linger = "0s";
  std::string report;
};

void add_replay_flags(CLI::App& app, replay_flags& flags) {
  app.option_defaults()->always_capture_default();
  app
    .add_option("--trace", flags.trace,
                "requests to replay, JSON lines as published with the Mooncake paper")
    ->type_name("FILE");
  app.add_option("--limit", flags.limit, "replay only the first N requests; 0 replays all")
    ->check(CLI::NonNegativeNumber);
  app.add_option("--workload", flags.workload, "instead of a trace: multi-turn conversations")
    ->check(CLI::IsMember({"multi-turn"}))
    ->excludes("--trace");
  app.add_option("--clients", flags.turns.clients, "conversations of the multi-turn workload")
    ->check(CLI::Range(1, 1'000'000));
  app.add_option("--rounds", flags.turns.rounds, "turns of each conversation")
    ->check(CLI::Range(1, 1'000'000));
  app
    .add_option("--turn-tokens", flags.turns.turn_tokens,
                "tokens that each turn adds to its prompt")
    ->check(CLI::Range(1, 1'000'000));
  app
    .add_option("--order", flags.order,
                "closed: a request after the other, reproducible; timed: at the trace's times")
    ->check(CLI::IsMember({"closed", "timed"}));
  app.add_option("--speedup", flags.options.speedup, "timed: how many times faster than the trace")
    ->check(CLI::PositiveNumber);
  app
    .add_option("--prefill-tokens-per-second", flags.options.prefill_tokens_per_second,
                "simulated speed of computation; 0 computes as fast as it can")
    ->check(CLI::NonNegativeNumber);
  app
    .add_option("--verify", flags.verify,
                "check cached bytes before they are used: off, sample or all")
    ->check(CLI::IsMember({"off", "sample", "all"}));
  app.add_flag("--cache-output", flags.options.cache_output, "cache the output tokens too");
  app
    .add_option(
      "--sessions", flags.sessions,
      "multi-turn: what a conversation is to the cache. off: nothing; refer: a session whose "
      "last prefix is evicted last; stream: a session that keeps its pages between turns")
    ->check(CLI::IsMember({"off", "refer", "stream"}))
    ->needs("--workload");
  app
    .add_option("--linger", flags.linger,
                "stay, with the memory exported to L3, after the last request: a time such as 30s, "
                "or forever")
    ->type_name("TIME");
  app.add_option("--report", flags.report, "where to write the report")->type_name("FILE.json");
  app.option_defaults()->always_capture_default(false);
}

result<std::vector<replay_request>> load_workload(const replay_flags& flags,
                                                  const rank_config& config) {
  if (flags.trace.empty() && flags.workload.empty())
    return fail(ec::invalid_argument,
                "there is nothing to replay; expected --trace FILE or --workload multi-turn");
  auto requests = HICACHE_TRY(flags.trace.empty()
                                ? result<std::vector<replay_request>>{make_multi_turn(flags.turns)}
                                : read_trace(flags.trace, flags.limit));
  for (const auto& request : requests) {
    const auto tokens
      = request.input_length + (flags.options.cache_output ? request.output_length : 0);
    const auto pages = (tokens + config.page_size - 1) / config.page_size;
    if (pages > config.l1_pages)
      return fail(ec::invalid_argument,
                  "--device-pages: request " + std::to_string(request.line) + " needs "
                    + std::to_string(pages) + " pages, the device pool has "
                    + std::to_string(config.l1_pages) + "; expected at least as many");
  }
  return requests;
}

/// Parses the time to linger; nothing means until a signal arrives.
result<std::optional<duration>> parse_linger(const std::string& text) {
  if (text == "forever")
    return std::optional<duration>{};
  auto time = parse_duration(text);
  if (!time)
    return fail(ec::invalid_argument, "--linger: " + time.error().detail + ", or forever");
  return std::optional<duration>{*time};
}

tl::unexpected<error> cannot_write(const std::string& path) {
  return fail(ec::invalid_argument, "--report: cannot write the file " + path);
}

/// False for pipes and devices, which cannot be replaced by renaming.
bool is_plain_file(const std::string& path) {
  auto failed = std::error_code{};
  return !std::filesystem::exists(path, failed) || std::filesystem::is_regular_file(path, failed);
}

/// Writes a temporary file and renames it, so that the report is never incomplete.
result<void> write_report(const std::string& path, const nlohmann::json& report) {
  const auto partial = is_plain_file(path) ? path + ".part" : path;
  auto file = std::ofstream{partial};
  file << report.dump(2) << "\n";
  file.close();
  if (!file || (partial != path && std::rename(partial.c_str(), path.c_str()) != 0))
    return cannot_write(path);
  return {};
}

/// Checks early that the report can be written, and removes an old one to avoid confusion.
result<void> prepare_report(const std::string& path) {
  if (!is_plain_file(path))
    return {};
  const auto partial = path + ".part";
  const auto possible = std::ofstream{partial}.is_open();
  auto failed = std::error_code{};
  std::filesystem::remove(partial, failed);
  std::filesystem::remove(path, failed);
  if (!possible || failed)
    return cannot_write(path);
  return {};
}

std::string progress_text(uint64_t done, uint64_t total, const replay_totals& so_far,
                          std::chrono::steady_clock::time_point start) {
  const auto rate
    = static_cast<double>(done)
      / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto hits = so_far.prompt_tokens == 0 ? 0.0
                                              : 100 * static_cast<double>(so_far.cached_tokens())
                                                  / static_cast<double>(so_far.prompt_tokens);
  const auto left = done == 0 ? 0.0 : static_cast<double>(total - done) / rate;
  return absl::StrFormat("%d of %d requests, %.1f/s, %.1f %% of tokens cached, %.0f s left", done,
                         total, rate, hits, left);
}

/// Writes the report and prints the summary, at rank 0.
result<void> conclude(replay_engine& engine, const replay_flags& flags, const rank_config& config,
                      uint32_t ranks) {
  auto settings = shared_settings(config);
  settings.emplace_back("ranks", std::to_string(ranks));
  settings.emplace_back("trace", flags.trace);
  settings.emplace_back("workload", flags.workload);
  settings.emplace_back("order", flags.order);
  settings.emplace_back("verify", flags.verify);
  if (!flags.report.empty())
    HICACHE_TRY(write_report(flags.report, to_json(engine.totals(), settings)));
  std::fputs(to_text(engine.totals()).c_str(), stdout);
  std::fflush(stdout);
  return {};
}

void linger(std::optional<duration> time, const stop_signal& stop) {
  if (time)
    stop.wait_for(*time);
  else
    while (!stop.wait_for(std::chrono::hours{1})) {
    }
}

bool clean(const replay_totals& totals) {
  return totals.mismatches == 0 && totals.engine_errors + totals.counters.errors == 0
         && totals.counters.divergences == 0;
}

/// Performs all checks that are possible before the ranks start.
result<void> check(rank_config& config, const replay_flags& flags, const rank_session& session,
                   std::vector<replay_request>& workload) {
  start_logging(to_string(config.log_level), session.rank, session.ranks);
  // Synthetic KV must never be shared as that of the real model with the same name or shape.
  config.model_id = kv_pattern::model_id(config.model_id);
  HICACHE_TRY(config.finish(session.ranks));
  HICACHE_TRY(parse_linger(flags.linger));
  workload = HICACHE_TRY(load_workload(flags, config));
  if (session.rank == 0 && !flags.report.empty())
    return prepare_report(flags.report);
  return {};
}

result<int> replay(const rank_config& config, const replay_flags& flags, rank_session& session,
                   const std::vector<replay_request>& workload, const stop_signal& stop,
                   const rank_extensions& extensions) {
  const auto speaks = session.rank == 0;
  auto watch = shutdown_watch{};
  auto runtime
    = HICACHE_TRY(rank_runtime::start(config, std::move(session.peers), {}, nullptr, extensions));
  if (speaks)
    spdlog::info("{} ranks; {}", session.ranks, runtime->description());
  auto options = flags.options;
  options.timed = flags.order == "timed";
  options.verify = flags.verify == "off"   ? verify_mode::off
                   : flags.verify == "all" ? verify_mode::all
                                           : verify_mode::sample;
  options.sessions = flags.sessions == "refer"    ? session_mode::refer
                     : flags.sessions == "stream" ? session_mode::stream
                                                  : session_mode::off;
  options.storage = !config.storage_backend.empty() || !config.admin_listen.empty();
  options.name_space = config.fingerprint();
  options.step_timeout = config.step_timeout;
  const auto split = config.split(session.ranks);
  options.first_head = split.part_of(session.rank) * split.heads;
  auto progress = std::optional<status_line>{};
  if (speaks)
    progress.emplace();
  const auto start = std::chrono::steady_clock::now();
  const auto metrics = std::make_shared<replay_metrics>(session.rank);
  runtime->add_metrics(metrics);
  auto engine = replay_engine{
    *runtime, workload, options, stop, [&](uint64_t done, const replay_totals& so_far) {
      metrics->show(so_far);
      if (progress)
        progress->show([&] { return progress_text(done, workload.size(), so_far, start); });
    }};
  auto ran = engine.run();
  metrics->show(engine.totals());
  progress.reset(); // Ends its line before the summary.
  if (ran)
    ran = engine.gather();
  if (speaks)
    HICACHE_TRY(conclude(engine, flags, config, session.ranks));
  if (!ran) {
    if (ran.error().code == ec::rank_unresponsive)
      return tl::unexpected{ran.error()};
    spdlog::error("the replay cannot go on: {}", to_string(ran.error()));
    return exit_failed;
  }
  if (!engine.totals().interrupted)
    linger(*parse_linger(flags.linger), stop);
  const auto code = clean(engine.totals()) ? exit_ok : exit_failed;
  watch.arm(config.shutdown_grace + limits::shutdown_slack, code);
  return code;
}

} // namespace

int run_replay(int argc, char** argv, const std::function<rank_extensions(rank_session&)>& bring) {
  const auto stop = stop_signal{};
  auto app = CLI::App{
    "Replays a workload through hicache, as an inference engine would, on real KV bytes.",
    "hicache-replay"};
  auto config = rank_config{};
  auto flags = replay_flags{};
  add_replay_flags(app, flags);
  add_rank_flags(app, config);
  auto workload = std::vector<replay_request>{};
  return run_rank_program(
    app, argc, argv, config,
    [&](const rank_session& session) { return check(config, flags, session, workload); },
    [&](rank_session& session) {
      return replay(config, flags, session, workload, stop,
                    bring ? bring(session) : rank_extensions{});
    });
}

} // namespace hicache
