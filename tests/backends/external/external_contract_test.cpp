// The contract of stores, on stores in other processes.

#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/external/store_host.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace hicache::test {
namespace {

opened_backend open(external_options options, std::shared_ptr<void> surroundings,
                    const clock_source& clock) {
  options.fingerprint = 7;
  auto store = make_external_backend(std::move(options), clock);
  EXPECT_TRUE(store) << store.error().detail;
  return {std::move(surroundings), queued(std::move(*store))};
}

uint64_t bound_for(room size) {
  return size.pages * (size.page_bytes + page_header_bytes);
}

/// A number that no other store has, since its server may be the same.
std::string next_number() {
  static auto stores = std::atomic<int>{0};
  return std::to_string(++stores);
}

opened_backend open_in_folder(const std::string& store, const clock_source& clock, room size) {
  auto folder = std::make_shared<temporary_folder>();
  return open({.command = host_of(store),
               .options = R"({"path": ")" + folder->path() + "\"}",
               .max_bytes = bound_for(size)},
              folder, clock);
}

opened_backend open_folder(const clock_source& clock, room size) {
  return open_in_folder("folder_store:FolderStore", clock, size);
}

opened_backend open_nixl(const clock_source& clock, room size) {
  return open_in_folder("hicache.nixl_store:NixlStore", clock, size);
}

opened_backend open_mooncake(const clock_source& clock, room size) {
  static auto servers = mooncake_servers{};
  return open({.socket = servers.socket(),
               .options = R"({"global_segment_size": "64mb", "master_server_address": ")"
                          + servers.master() + R"(", "extra_backend_tag": "contract)"
                          + next_number() + "\"}",
               .max_bytes = bound_for(size)},
              nullptr, clock);
}

opened_backend open_lmcache(const clock_source& clock, room) {
  static auto servers = lmcache_servers{};
  return open(
    {.socket = servers.socket(),
     .options = R"({"remote_url": ")" + servers.url() + R"(", "tag": ")" + next_number() + "\"}"},
    nullptr, clock);
}

/// A class with the methods of SGLang's HiCacheStorage.
opened_backend open_dynamic(const clock_source& clock, room) {
  static auto host = listening_host{"torch_stores:TensorStorage"};
  return open({.socket = host.socket(), .options = R"({"tag": ")" + next_number() + "\"}"}, nullptr,
              clock);
}

/// A store that a Python module opens.
backend_factory with_module(const std::string& module, backend_factory store) {
  if (!has_module(module))
    store.lacking = "there is no Python with " + module;
  return store;
}

/// All of them, wherever the tests run: what the machine lacks is skipped by name.
std::vector<backend_factory> stores() {
  return {{"folder", open_folder, true},
          with_module("nixl", {"nixl", open_nixl, true}),
          with_module("mooncake.store", {"mooncake", open_mooncake}),
          with_module("lmcache", {"lmcache", open_lmcache, false, false}),
          with_module("torch", {"dynamic", open_dynamic, false, false})};
}

TEST(ExternalContractTest, AStoreThatTheMachineLacksIsSkippedByNameAndSaysWhy) {
  const auto python = store_python();
  ::setenv("HICACHE_STORE_PYTHON", "false", 1);
  auto lacking = std::map<std::string, std::string>{};
  for (const auto& store : stores())
    lacking.emplace(store.name, store.lacking);
  ::setenv("HICACHE_STORE_PYTHON", python.c_str(), 1);
  EXPECT_EQ(lacking, (std::map<std::string, std::string>{
                       {"folder", ""},
                       {"nixl", "there is no Python with nixl"},
                       {"mooncake", "there is no Python with mooncake.store"},
                       {"lmcache", "there is no Python with lmcache"},
                       {"dynamic", "there is no Python with torch"}}));
}

INSTANTIATE_TEST_SUITE_P(External, BackendContractTest, testing::ValuesIn(stores()),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  hicache::test::prepare_python();
  if (!hicache::test::has_module("capnp")) {
    std::puts("[  SKIPPED ] there is no Python with pycapnp");
    return 0;
  }
  return RUN_ALL_TESTS();
}
