#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/temporary_folder.hpp"

namespace hicache::test {
namespace {

template <size_t Threads>
opened_backend open_memory(const clock_source& clock, room size) {
  return {nullptr, queued(make_memory_backend(size.pages * size.page_bytes, clock), Threads)};
}

template <size_t Threads>
opened_backend open_file(const clock_source& clock, room size) {
  const auto folder = std::make_shared<temporary_folder>();
  const auto max_bytes = size.pages * (size.page_bytes + page_header_bytes);
  auto store = make_file_backend({{folder->path(), max_bytes}, 7}, clock);
  return {folder, queued(std::move(store.value()), Threads)};
}

/// The test double itself, while nothing goes wrong.
opened_backend open_faulty_memory(const clock_source& clock, room size) {
  return {nullptr, std::make_unique<faulty_store>(open_memory<2>(clock, size).store)};
}

/// One tier behaves as its store.
opened_backend open_one_tier(const clock_source& clock, room size) {
  auto options = tiered_options{};
  options.tiers.push_back({open_memory<2>(clock, size).store, {}});
  return {nullptr, make_tiered_backend(std::move(options), clock).value()};
}

/// A tier that stays empty behaves as none.
opened_backend open_below_an_empty_tier(const clock_source& clock, room size) {
  auto below = open_file<2>(clock, size);
  auto options = tiered_options{};
  options.tiers.push_back(
    {open_memory<2>(clock, size).store, {{tier_writes::rule::never, 0}, false}});
  options.tiers.push_back({std::move(below.store), {}});
  return {below.surroundings, make_tiered_backend(std::move(options), clock).value()};
}

/// One tier behaves as its store, also after others came and went.
opened_backend open_after_changes(const clock_source& clock, room size) {
  auto options = tiered_options{};
  options.tiers.push_back({open_memory<2>(clock, room{}).store, {}});
  auto store = make_tiered_backend(std::move(options), clock).value();
  EXPECT_TRUE(store->add_tier({open_memory<2>(clock, size).store, {}}, 1));
  store->resume_tier(1);
  EXPECT_TRUE(store->suspend_tier(0, std::chrono::seconds{60}));
  EXPECT_TRUE(store->remove_tier(0, std::chrono::seconds{60}));
  return {nullptr, std::move(store)};
}

INSTANTIATE_TEST_SUITE_P(
  Stores, BackendContractTest,
  testing::Values(backend_factory{"memory", open_memory<2>, true},
                  backend_factory{"faulty_memory", open_faulty_memory, true},
                  backend_factory{"file", open_file<2>, true},
                  backend_factory{"file_without_threads", open_file<0>, true},
                  backend_factory{"one_tier", open_one_tier, true},
                  backend_factory{"below_an_empty_tier", open_below_an_empty_tier, true},
                  backend_factory{"after_changes", open_after_changes, true}),
  [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test
