// Clients of a node as it should not have them, or has many; system.node runs them. Says what it
// has done and, unless it stores, reads or removes, waits for SIGTERM.

#include "backends/ask.hpp"
#include "backends/node_client.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "launch/stop_signal.hpp"
#include "rpc/limits.hpp"
#include "rpc/network.hpp"
#include "runtime/network_flags.hpp"
#include "tests/backends/backend_support.hpp"

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/send.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace hicache;
using namespace std::chrono_literals;

constexpr auto page_size = size_t{4096};

/// Requests that a flood has under way: fewer than a connection may have, so that it lasts.
constexpr auto flood_requests = 1000;

struct client_process {
  client_process(std::string at, const tls_files& tls)
    : network(system, tls), address(std::move(at)) {}

  node_client_options options() {
    return {&system, network.node_connector(), address, {1, 7}, {}, &clock};
  }

  time_point soon() const { return clock.now() + 30s; }

  /// The node, which knows this client.
  result<node_actor> attach() {
    auto found = ask<caf::strong_actor_ptr>(system, network.node_connector(), caf::timespan{30s},
                                            atom::connect_v, address);
    if (!found)
      return tl::unexpected{found.error()};
    auto node = caf::actor_cast<node_actor>(*found);
    if (auto info
        = ask<node_info>(system, node, caf::timespan{30s}, atom::attach_v, client_info{1, 7});
        !info)
      return tl::unexpected{info.error()};
    return node;
  }

  system_config config;
  caf::actor_system system{config};
  rpc_network network;
  monotonic_clock clock;
  std::string address;
};

result<void> store(node_client& node, uint64_t number, time_point deadline) {
  const auto bytes = test::bytes_of(number, page_size);
  const auto key = test::key_of(number);
  if (auto put = node.put(std::array{page_write{key, {}, {bytes}}}, deadline).at(0); !put)
    return put;
  auto seen = test::page_bytes(page_size);
  if (auto got = node.get(std::array{page_read{key, {seen}}}, deadline).at(0); !got)
    return got;
  return seen == bytes ? result<void>{} : fail(ec::corrupt_page);
}

void say(const char* what) {
  std::puts(what);
  std::fflush(stdout);
}

void wait_for(const stop_signal& stop) {
  while (!stop.wait_for(1h))
    continue;
}

/// What is stored and read.
struct some_pages {
  uint64_t first = 5000;
  uint64_t count = 100;
};

result<int> store_some(client_process& process, const some_pages& pages) {
  auto node = node_client{process.options()};
  for (auto number = pages.first; number < pages.first + pages.count; ++number)
    if (auto stored = store(node, number, process.soon()); !stored)
      return tl::unexpected{stored.error()};
  say("stored");
  return exit_ok;
}

/// What `store` stored, as far as it is there.
result<int> read_some(client_process& process, const some_pages& pages) {
  auto node = node_client{process.options()};
  auto found = 0;
  for (auto number = pages.first; number < pages.first + pages.count; ++number) {
    auto seen = test::page_bytes(page_size);
    const auto read = page_read{test::key_of(number), {seen}};
    const auto got = node.get(std::array{read}, process.soon()).at(0);
    if (got && seen != test::bytes_of(number, page_size))
      return fail(ec::corrupt_page, "another page was read");
    if (!got && got.error().code != ec::not_found)
      return tl::unexpected{got.error()};
    found += got ? 1 : 0;
  }
  say(("found " + std::to_string(found)).c_str());
  return exit_ok;
}

/// The first ten pages that `store` stored.
result<int> remove_some(client_process& process) {
  auto node = node_client{process.options()};
  auto keys = std::vector<page_key>{};
  for (auto number = uint64_t{0}; number < 10; ++number)
    keys.push_back(test::key_of(5000 + number));
  for (const auto& removed : node.remove(keys, process.soon()))
    if (!removed)
      return tl::unexpected{removed.error()};
  say("removed");
  return exit_ok;
}

result<int> reserve(client_process& process, const stop_signal& stop) {
  const auto node = process.attach();
  if (!node)
    return tl::unexpected{node.error()};
  auto wanted = wanted_pages{};
  for (auto number = uint64_t{0}; number < 100; ++number)
    wanted.pages.push_back({test::key_of(5000 + number), {}, page_size});
  const auto got = ask<reserved_pages>(process.system, *node, caf::timespan{30s}, atom::reserve_v,
                                       std::move(wanted));
  if (!got)
    return tl::unexpected{got.error()};
  say("reserved");
  wait_for(stop);
  return exit_ok;
}

result<int> flood(client_process& process, const stop_signal& stop) {
  const auto node = process.attach();
  if (!node)
    return tl::unexpected{node.error()};
  say("flooding");
  while (!stop.raised()) {
    for (auto i = 0; i < flood_requests; ++i)
      caf::anon_send(*node, atom::release_v, client_ticket{1});
    if (auto answer = ask<node_status>(process.system, *node, caf::timespan{30s}, atom::status_v,
                                       status_query{});
        !answer)
      return tl::unexpected{answer.error()};
  }
  return exit_ok;
}

/// As many clients as a process may be and one more, each with a connection and a mapping of its
/// own.
result<int> crowd(client_process& process, const stop_signal& stop) {
  raise_descriptor_limit();
  auto nodes = std::vector<std::unique_ptr<node_client>>{};
  for (auto i = size_t{0}; i < rpc::limits::connections_of_process; ++i) {
    auto& node = *nodes.emplace_back(std::make_unique<node_client>(process.options()));
    if (auto stored = store(node, i % 100, process.soon()); !stored)
      return tl::unexpected{stored.error()};
  }
  auto one_more = node_client{process.options()};
  if (one_more.connect(process.soon()))
    return fail(ec::malformed_message, "one client too many is let in");
  for (auto& node : nodes)
    if (auto stored = store(*node, 200, process.soon()); !stored)
      return tl::unexpected{stored.error()};
  say("all are served");
  wait_for(stop);
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto path = std::string{};
  auto address = std::string{};
  auto tls = tls_files{};
  auto pages = some_pages{};
  auto app = CLI::App{"Uses a node badly, or much.", "faulty-node-client"};
  app.add_option("--socket", path);
  app.add_option("--address", address);
  add_tls_flags(app, tls);
  app.require_subcommand(1);
  auto* storing = app.add_subcommand("store", "stores pages and reads them");
  auto* reading = app.add_subcommand("read", "reads what was stored, as far as it is there");
  for (auto* each : {storing, reading}) {
    each->add_option("--first", pages.first);
    each->add_option("--pages", pages.count);
  }
  auto* removing = app.add_subcommand("remove", "removes some of what was stored");
  auto* reserving = app.add_subcommand("reserve", "reserves pages and does not write them");
  auto* flooding = app.add_subcommand("flood", "asks as much as it can");
  app.add_subcommand("crowd", "is as many clients as one process may be");
  return run_program(app, argc, argv, [&]() -> result<int> {
    start_logging("info", 0, 1);
    auto process = client_process{address.empty() ? "unix:" + path : address, tls};
    if (storing->parsed())
      return store_some(process, pages);
    if (reading->parsed())
      return read_some(process, pages);
    if (removing->parsed())
      return remove_some(process);
    if (reserving->parsed())
      return reserve(process, stop);
    return flooding->parsed() ? flood(process, stop) : crowd(process, stop);
  });
}
