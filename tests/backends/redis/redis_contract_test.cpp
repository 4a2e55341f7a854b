// The contract of stores, on a redis-server and on a cluster of three.

#include "backends/redis/redis_backend.hpp"
#include "backends/redis/redis_object.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/redis/redis_server.hpp"

#include <atomic>

namespace hicache::test {
namespace {

/// The servers last as long as the program: starting a cluster takes seconds.
template <class Servers>
Servers& shared() {
  static auto servers = Servers{};
  return servers;
}

opened_backend open_on(redis_options options, const clock_source& clock, room size) {
  static auto stores = std::atomic<int>{0};
  options.key_prefix = "contract:" + std::to_string(++stores) + ":";
  options.max_bytes = size.pages * (size.page_bytes + redis_head_bytes);
  auto store = make_redis_backend(options, clock);
  EXPECT_TRUE(store) << store.error().detail;
  return {nullptr, queued(std::move(*store))};
}

opened_backend open_single(const clock_source& clock, room size) {
  return open_on(options_for({shared<redis_server>().where()}), clock, size);
}

opened_backend open_for_namespaces(const clock_source& clock, room size) {
  auto options = options_for({shared<redis_server>().where()});
  options.fingerprint.reset();
  return open_on(std::move(options), clock, size);
}

opened_backend open_in_chunks(const clock_source& clock, room size) {
  auto options = options_for({shared<redis_server>().where()});
  options.chunk_bytes = redis_chunk_min;
  return open_on(std::move(options), clock, size);
}

opened_backend open_cluster(const clock_source& clock, room size) {
  return open_on(options_for({shared<redis_cluster>().node(0).where()}, true), clock, size);
}

INSTANTIATE_TEST_SUITE_P(Redis, BackendContractTest,
                         testing::Values(backend_factory{"single", open_single, true},
                                         backend_factory{"for_namespaces", open_for_namespaces,
                                                         true},
                                         backend_factory{"in_chunks", open_in_chunks, true},
                                         backend_factory{"cluster", open_cluster, true}),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  if (!hicache::test::has_redis_server()) {
    std::puts("[  SKIPPED ] there is no redis-server");
    return 0;
  }
  return RUN_ALL_TESTS();
}
