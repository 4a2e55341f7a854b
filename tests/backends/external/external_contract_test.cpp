// The contract of stores, on stores in other processes.

#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/external/store_host.hpp"

#include <atomic>
#include <cstdio>

namespace hicache::test {
namespace {

opened_backend open(external_options options, std::shared_ptr<void> surroundings,
                    const clock_source& clock, room size) {
  options.max_bytes = size.pages * (size.page_bytes + page_header_bytes);
  options.fingerprint = 7;
  auto store = make_external_backend(std::move(options), clock);
  EXPECT_TRUE(store) << store.error().detail;
  return {std::move(surroundings), queued(std::move(*store))};
}

opened_backend open_in_folder(const std::string& store, const clock_source& clock, room size) {
  auto folder = std::make_shared<temporary_folder>();
  return open({.command = host_of(store), .options = R"({"path": ")" + folder->path() + "\"}"},
              folder, clock, size);
}

opened_backend open_folder(const clock_source& clock, room size) {
  return open_in_folder("folder_store:FolderStore", clock, size);
}

opened_backend open_nixl(const clock_source& clock, room size) {
  return open_in_folder("hicache.nixl_store:NixlStore", clock, size);
}

opened_backend open_mooncake(const clock_source& clock, room size) {
  static auto servers = mooncake_servers{};
  static auto stores = std::atomic<int>{0};
  return open({.socket = servers.socket(),
               .options = R"({"global_segment_size": "64mb", "master_server_address": ")"
                          + servers.master() + R"(", "extra_backend_tag": "contract)"
                          + std::to_string(++stores) + "\"}"},
              nullptr, clock, size);
}

/// Those whose servers are there.
std::vector<backend_factory> stores() {
  auto stores = std::vector{backend_factory{"folder", open_folder, true}};
  if (has_module("nixl"))
    stores.push_back({"nixl", open_nixl, true});
  if (has_module("mooncake.store"))
    stores.push_back({"mooncake", open_mooncake});
  return stores;
}

INSTANTIATE_TEST_SUITE_P(External, BackendContractTest, testing::ValuesIn(stores()),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  hicache::test::set_python_path();
  if (!hicache::test::has_module("capnp")) {
    std::puts("[  SKIPPED ] there is no Python with pycapnp");
    return 0;
  }
  return RUN_ALL_TESTS();
}
