// Baseline of the index: its calls over bare Cap'n Proto RPC, without an index or actors.

#include "bench/store_actors.hpp"
#include "messages/wire_values.hpp"
#include "rpc/services.capnp.h"

#include <capnp/ez-rpc.h>
#include <kj/async.h>

#include <cstdio>
#include <random>
#include <thread>
#include <utility>

namespace hicache::bench {

namespace {

class fixed_answers final : public schema::Index::Server {
public:
  /// Answers like an index that holds each page once.
  kj::Promise<void> locate(LocateContext context) override {
    const auto keys = context.getParams().getKeys();
    auto answer = context.getResults();
    auto counts = answer.initCounts(keys.size());
    auto replicas = answer.initReplicas(keys.size());
    for (auto i = 0U; i < keys.size(); ++i) {
      counts.set(i, 1);
      auto one = replicas[i];
      one.setMember(1);
      one.setOffset(keys[i].getWord0());
      one.setLength(4096);
      one.setGeneration(1);
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> mount(MountContext context) override {
    answer(context.getResults());
    return kj::READY_NOW;
  }

  kj::Promise<void> publish(PublishContext context) override {
    answer(context.getResults());
    return kj::READY_NOW;
  }

private:
  static void answer(schema::Membership::Builder to) {
    to.setKnown(true);
    to.setMemberTtlMs(60000);
  }
};

/// Keeps calls running one after the other. `begin_next` starts one, or returns nothing at the end.
template <class BeginNext>
kj::Promise<void> repeat(BeginNext begin_next) {
  auto next = begin_next();
  KJ_IF_MAYBE (one, next)
    return one->then([begin_next] { return repeat(begin_next); });
  return kj::READY_NOW;
}

template <class BeginNext>
void keep_under_way(capnp::EzRpcClient& client, uint64_t count, BeginNext begin_next) {
  auto all = kj::heapArrayBuilder<kj::Promise<void>>(count);
  for (auto i = uint64_t{0}; i < count; ++i)
    all.add(repeat(begin_next));
  kj::joinPromises(all.finish()).wait(client.getWaitScope());
}

lookup_figures ask_bare(const std::string& at, const std::vector<std::vector<page_key>>& batches,
                        size_t next, uint64_t outstanding, steady::time_point end) {
  auto figures = lookup_figures{};
  auto client = capnp::EzRpcClient{at.c_str()};
  auto shard = client.getMain<schema::Index>();
  keep_under_way(client, outstanding, [&]() -> kj::Maybe<kj::Promise<void>> {
    if (steady::now() >= end)
      return nullptr;
    const auto begin = steady::now();
    auto request = shard.locateRequest();
    const auto& batch = batches[next];
    next = (next + 1) % batches.size();
    wire::write(key_batch{batch}, request);
    return request.send().then([&figures, begin](auto&& answer) {
      for (const auto copies : answer.getCounts())
        figures.found += copies;
      for (const auto copy : answer.getReplicas())
        figures.found += copy.getMember() == 0 ? 1 : 0;
      figures.latency_us.push_back(1e6 * seconds_since(begin));
    });
  });
  return figures;
}

} // namespace

result<void> serve_fixed_answers() {
  auto server = capnp::EzRpcServer{kj::heap<fixed_answers>(), "127.0.0.1"};
  const auto port = server.getPort().wait(server.getWaitScope());
  std::printf("listening on 127.0.0.1:%u\n", port);
  std::fflush(stdout);
  kj::NEVER_DONE.wait(server.getWaitScope());
  return {};
}

result<nlohmann::json> measure_bare_lookups(const ask_options& options) {
  const auto batches = key_batches(0, options.keys, options.batch);
  const auto threads = options.by_threads ? options.outstanding : 1;
  const auto each = options.by_threads ? 1 : options.outstanding;
  auto parts = std::vector<lookup_figures>(threads);
  const auto begin = steady::now();
  const auto end = begin + from_seconds(options.seconds);
  {
    auto running = std::vector<std::jthread>{};
    for (auto i = size_t{0}; i < threads; ++i)
      running.emplace_back([&, i] {
        parts[i] = ask_bare(options.index.at, batches, i * batches.size() / threads, each, end);
      });
  }
  const auto seconds = seconds_since(begin);
  auto all = lookup_figures{};
  for (const auto& part : parts) {
    all.latency_us.insert(all.latency_us.end(), part.latency_us.begin(), part.latency_us.end());
    all.found += part.found;
  }
  return to_json(all, options.batch, seconds);
}

result<nlohmann::json> announce_bare_keys(const announce_options& options) {
  auto client = capnp::EzRpcClient{options.index.at.c_str()};
  auto shard = client.getMain<schema::Index>();
  const auto pages = options.keys / options.members;
  auto seconds = 0.0;
  for (auto i = uint64_t{0}; i < options.members; ++i) {
    auto left = announcements(i + 1, i * pages, pages, options.batch);
    auto mount = shard.mountRequest();
    wire::write(describe(i + 1, pages), mount);
    mount.send().wait(client.getWaitScope());
    const auto begin = steady::now();
    keep_under_way(client, options.outstanding, [&]() -> kj::Maybe<kj::Promise<void>> {
      if (left.empty())
        return nullptr;
      auto request = shard.publishRequest();
      wire::write(left.back(), request);
      left.pop_back();
      return request.send().ignoreResult();
    });
    seconds += seconds_since(begin);
  }
  const auto keys = pages * options.members;
  return nlohmann::json{{"keys", keys}, {"keys_per_s", static_cast<double>(keys) / seconds}};
}

} // namespace hicache::bench
