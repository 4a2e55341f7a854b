// Stores that have memory of their own keep the contract of stores: the cluster store, with an
// index and one member, and a node, of this machine or, as far as it can tell, of another one.

#include "backends/node_backend.hpp"
#include "launch/node_host.hpp"
#include "messages/page_header.hpp"
#include "messages/system_config.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/launch/cluster_support.hpp"
#include "tests/rpc/authority.hpp"

#include <optional>

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
  auto store = (**around->member).open();
  return {std::move(around), std::move(store)};
}

/// A node, and the rank that uses it.
struct node_surroundings {
  temporary_folder folder;
  system_config config;
  caf::actor_system system{config};
  std::unique_ptr<node_host> node;
};

/// @param listen Where the rank connects, if it is on another machine.
opened_backend open_node_at(const clock_source& clock, room size,
                            const std::optional<rpc::endpoint>& listen) {
  auto around = std::make_shared<node_surroundings>();
  auto options = node_host_options{};
  options.memory_bytes = size.pages * slot_bytes_for(size.page_bytes);
  options.socket = around->folder.path() + "/socket";
  // So few pages that one is more than the share of a client.
  options.shares = {.of_client = 1, .of_tenant = 1, .of_all = 1};
  options.leased_share = 1;
  options.clock = &clock;
  options.listen = listen;
  if (listen)
    options.tls = authority{"cluster"}.sign_into(around->folder.path());
  around->node = node_host::start(around->system, options).value();
  const auto where = listen ? to_string(*around->node->listening()) : options.socket;
  auto store = make_node_backend(around->system, {where, 7, options.tls}, clock).value();
  return {std::move(around), std::move(store)};
}

opened_backend open_node(const clock_source& clock, room size) {
  return open_node_at(clock, size, {});
}

opened_backend open_remote_node(const clock_source& clock, room size) {
  return open_node_at(clock, size, rpc::endpoint{"127.0.0.1", 0});
}

INSTANTIATE_TEST_SUITE_P(Stores, BackendContractTest,
                         testing::Values(backend_factory{"cluster", open_cluster},
                                         backend_factory{"node", open_node},
                                         backend_factory{"remote_node", open_remote_node}),
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
