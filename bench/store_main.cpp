// store_bench: parts and baselines of store.py's measurements of the cluster store: copies by
// memcpy, bare RPC with fixed answers, members that only announce.

#include "base/limits.hpp"
#include "bench/store_parts.hpp"
#include "launch/program.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace {

using namespace hicache;
using namespace hicache::bench;

void add_index_flags(CLI::App& app, index_address& index) {
  app.add_option("--index", index.at, "an index, or what `serve` says")
    ->type_name("HOST:PORT")
    ->required();
  app.add_flag("--bare", index.is_bare, "it is `serve`");
}

CLI::Option* add_count(CLI::App& app, const char* name, uint64_t& value, uint64_t most,
                       const char* help) {
  return app.add_option(name, value, help)
    ->check(CLI::Range(uint64_t{1}, most))
    ->capture_default_str();
}

constexpr auto most_keys = uint64_t{1} << 32;

} // namespace

int main(int argc, char** argv) {
  auto app = CLI::App{"Baselines and members for measurements of the cluster store", "store_bench"};
  app.require_subcommand(1);

  auto copies = copy_options{};
  auto* memcpy_part = app.add_subcommand("memcpy", "copies pages by memcpy");
  add_count(*memcpy_part, "--bytes", copies.bytes, uint64_t{1} << 30, "bytes of a page");
  add_count(*memcpy_part, "--batch", copies.batch, 4096, "pages that the target holds");
  add_count(*memcpy_part, "--pages", copies.pages, most_keys, "pages that the source holds");
  memcpy_part->add_option("--seconds", copies.seconds, "how long")->check(CLI::PositiveNumber);

  auto* serve = app.add_subcommand(
    "serve", "answers requests of the index with fixed answers, by bare Cap'n Proto RPC");

  auto asks = ask_options{};
  auto* ask = app.add_subcommand("ask", "looks up keys");
  add_index_flags(*ask, asks.index);
  add_count(*ask, "--batch", asks.batch, limits::index_batch_keys, "keys of a request");
  add_count(*ask, "--outstanding", asks.outstanding, 4096, "requests under way");
  ask->add_flag("--by-threads", asks.by_threads, "by threads that wait, rather than by an actor");
  add_count(*ask, "--keys", asks.keys, most_keys, "different keys");
  ask->add_option("--seconds", asks.seconds, "how long")->check(CLI::PositiveNumber);

  auto news = announce_options{};
  auto* announce = app.add_subcommand("announce", "announces keys by members without memory");
  add_index_flags(*announce, news.index);
  add_count(*announce, "--keys", news.keys, most_keys, "keys of all members");
  add_count(*announce, "--members", news.members, limits::index_members, "members");
  add_count(*announce, "--batch", news.batch, limits::index_batch_keys, "keys of a message");
  add_count(*announce, "--outstanding", news.outstanding, 4096, "messages under way");
  announce->add_flag("--stay", news.stay,
                     "then let a member go for each line on standard input, until that ends");

  auto watched = watch_options{};
  auto* watch
    = app.add_subcommand("watch", "prints how many keys an index has whenever it changes");
  watch->add_option("--index", watched.index, "the index")->type_name("HOST:PORT")->required();
  add_count(*watch, "--sample", watched.sample, limits::index_batch_keys, "keys to look up");

  return run_program(app, argc, argv, [&]() -> result<int> {
    start_logging("off", 0, 1);
    auto done = result<void>{};
    if (*memcpy_part)
      std::printf("%s\n", measure_memcpy(copies).dump().c_str());
    else if (*serve)
      done = serve_fixed_answers();
    else if (*announce)
      done = announce_keys(news);
    else if (*watch)
      done = watch_index(watched);
    else if (const auto figures = measure_lookups(asks))
      std::printf("%s\n", figures->dump().c_str());
    else
      done = tl::unexpected{figures.error()};
    if (!done)
      return tl::unexpected{done.error()};
    return exit_ok;
  });
}
