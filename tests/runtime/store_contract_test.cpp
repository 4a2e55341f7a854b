// Stores that have memory of their own keep the contract of stores: the cluster store, with an
// index and one member, and a node, of this machine or, as far as it can tell, of another one.

#include "backends/node_backend.hpp"
#include "hicache/system_config.hpp"
#include "messages/page_header.hpp"
#include "runtime/node_host.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/runtime/cluster_support.hpp"

#include <utility>

namespace hicache::test {
namespace {

struct cluster_surroundings {
  local_index index;
  std::unique_ptr<local_member> member;
};

opened_backend open_cluster(const clock_source& clock, room size) {
  auto around = std::make_shared<cluster_surroundings>();
  auto options = cluster_member_options{};
  options.segment_bytes = size.pages * slot_bytes_for(size.page_bytes);
  options.object_bytes = size.page_bytes;
  options.fingerprint = 7;
  options.clock = &clock;
  around->member = std::make_unique<local_member>(around->index, std::move(options));
  auto store = queued((**around->member).open());
  return {std::move(around), std::move(store)};
}

/// A node, and the rank that uses it.
struct node_surroundings {
  temporary_folder folder;
  system_config config;
  caf::actor_system system{config};
  std::unique_ptr<node_host> node;
};

opened_backend start_node(const clock_source& clock, room size, node_host_options options) {
  auto around = std::make_shared<node_surroundings>();
  options.memory_bytes += size.pages * slot_bytes_for(size.page_bytes);
  if (!options.memory_file.empty())
    options.memory_file = around->folder.path() + "/" + options.memory_file;
  options.socket = around->folder.path() + "/socket";
  // So few pages that one is more than the share of a client.
  options.shares = {.of_client = 1, .of_tenant = 1, .of_all = 1};
  options.leased_share = 1;
  options.clock = &clock;
  if (options.listen)
    options.tls = authority{"cluster"}.sign_into(around->folder.path());
  around->node = node_host::start(around->system, options).value();
  const auto where = options.listen ? to_string(*around->node->listening()) : options.socket;
  auto store = make_node_backend(around->system, {where, 7, options.tls}, clock).value();
  return {std::move(around), queued(std::move(store))};
}

opened_backend open_node(const clock_source& clock, room size) {
  return start_node(clock, size, {});
}

opened_backend open_remote_node(const clock_source& clock, room size) {
  auto options = node_host_options{};
  options.listen = rpc::endpoint{"127.0.0.1", 0};
  return start_node(clock, size, std::move(options));
}

opened_backend open_lasting_node(const clock_source& clock, room size) {
  auto options = node_host_options{};
  options.memory_bytes = memory_label_bytes;
  options.memory_file = "memory";
  return start_node(clock, size, std::move(options));
}

INSTANTIATE_TEST_SUITE_P(Stores, BackendContractTest,
                         testing::Values(backend_factory{"cluster", open_cluster},
                                         backend_factory{"node", open_node},
                                         backend_factory{"remote_node", open_remote_node},
                                         backend_factory{"lasting_node", open_lasting_node}),
                         [](const auto& chosen) { return chosen.param.name; });

TEST(NodeStoreTest, ABatchLargerThanAClientsShareIsStoredInParts) {
  constexpr auto page_size = size_t{64} << 10;
  constexpr auto count = uint64_t{256};
  const auto clock = monotonic_clock{};
  auto around = node_surroundings{};
  auto options = node_host_options{};
  options.memory_bytes = uint64_t{64} << 20;
  options.socket = around.folder.path() + "/socket";
  options.clock = &clock;
  around.node = node_host::start(around.system, options).value();
  const auto store = make_node_backend(around.system, {options.socket, 7, {}}, clock).value();
  auto bytes = std::vector<page_bytes>{};
  for (auto number = uint64_t{0}; number < count; ++number)
    bytes.push_back(bytes_of(number, page_size));
  auto pages = std::vector<page_write>{};
  for (auto number = uint64_t{0}; number < count; ++number)
    pages.push_back({key_of(number), {}, {bytes[number]}});
  for (const auto& stored : store->set(pages, no_deadline))
    EXPECT_TRUE(stored) << to_string(stored.error());
  for (auto number = uint64_t{0}; number < count; ++number)
    EXPECT_EQ(take(*store, key_of(number), page_size), bytes[number]);
}

} // namespace
} // namespace hicache::test
