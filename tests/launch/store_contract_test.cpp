// The cluster store keeps the contract of stores: with an index and a segment of its own.

#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/launch/cluster_support.hpp"

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

INSTANTIATE_TEST_SUITE_P(Stores, BackendContractTest,
                         testing::Values(backend_factory{"cluster", open_cluster}),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test
