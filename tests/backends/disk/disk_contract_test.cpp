#include "backends/disk/disk_files.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/disk/disk_support.hpp"
#include "tests/backends/temporary_folder.hpp"

namespace hicache::test {
namespace {

disk_options options_in(room size) {
  const auto object = disk_blocks_for(size.page_bytes);
  return options_for(size.pages * object, std::max<uint64_t>(4 * object, 64 * disk_block_bytes));
}

backend_factory in_files(const char* name, bool may_use_uring) {
  return {name,
          [may_use_uring](const clock_source& clock, room size) {
            auto folder = std::make_shared<temporary_folder>();
            const auto options = options_in(size);
            auto device = open_disk_files(folder->path(), options.segment_bytes, may_use_uring);
            EXPECT_TRUE(device) << device.error().detail;
            auto store = make_disk_backend(options, std::move(*device), clock);
            EXPECT_TRUE(store) << store.error().detail;
            return opened_backend{folder, queued(std::move(*store))};
          },
          true};
}

opened_backend open_in_memory(const clock_source& clock, room size) {
  const auto options = options_in(size);
  auto image = std::make_shared<disk_image>(options.segment_bytes);
  auto store = open_store(options, *image, clock);
  return {image, queued(std::move(store))};
}

INSTANTIATE_TEST_SUITE_P(Disk, BackendContractTest,
                         testing::Values(in_files("uring", true), in_files("threads", false),
                                         backend_factory{"double", open_in_memory, true}),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test
