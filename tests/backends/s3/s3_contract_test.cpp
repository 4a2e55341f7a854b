// The contract of stores, on a moto server.

#include "backends/s3/s3_backend.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/s3/s3_server.hpp"

#include <atomic>
#include <cstdio>

namespace hicache::test {
namespace {

/// Lasts as long as the program: starting it takes a second.
s3_server& server() {
  static auto shared = s3_server{};
  return shared;
}

opened_backend open_bucket(const clock_source& clock, room size) {
  static auto stores = std::atomic<int>{0};
  auto options = options_for(server().endpoint());
  options.key_prefix = "contract/" + std::to_string(++stores) + "/";
  options.max_bytes = size.pages * (size.page_bytes + page_header_bytes);
  auto store = make_s3_backend(options, clock);
  EXPECT_TRUE(store) << store.error().detail;
  return {nullptr, queued(std::move(*store))};
}

INSTANTIATE_TEST_SUITE_P(S3, BackendContractTest,
                         testing::Values(backend_factory{"moto", open_bucket, true}),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test

int main(int count, char** arguments) {
  testing::InitGoogleTest(&count, arguments);
  hicache::test::set_credentials();
  if (!hicache::test::has_s3_server()) {
    std::puts("[  SKIPPED ] there is no moto_server");
    return 0;
  }
  return RUN_ALL_TESTS();
}
