// The store on 3FS, with a double of 3FS's library (hf3fs_double.cpp).

#include "backends/disk/hf3fs_files.hpp"
#include "backends/disk/hf3fs_library.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/disk/disk_support.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <type_traits>

namespace hicache::test {
namespace {

constexpr auto store_bytes = uint64_t{16} << 20;
constexpr auto page_size = size_t{100000};

/// What the double takes for a 3FS.
class mounted_3fs {
public:
  mounted_3fs() { std::filesystem::create_directories(path("3fs-virt/iovs")); }

  std::string path() const { return folder_.path(); }
  std::string path(const std::string& name) const { return path() + "/" + name; }

private:
  temporary_folder folder_;
};

opened_backend open_on_3fs(const clock_source& clock, room size) {
  auto mounted = std::make_shared<mounted_3fs>();
  const auto object = disk_blocks_for(size.page_bytes);
  auto options
    = options_for(size.pages * object, std::max<uint64_t>(4 * object, 64 * disk_block_bytes));
  auto device
    = open_hf3fs_files(mounted->path("pages"), options.segment_bytes, {HICACHE_HF3FS_DOUBLE});
  EXPECT_TRUE(device) << device.error().detail;
  auto store = make_disk_backend(options, std::move(*device), clock);
  EXPECT_TRUE(store) << store.error().detail;
  return {mounted, queued(std::move(*store))};
}

INSTANTIATE_TEST_SUITE_P(Hf3fs, BackendContractTest,
                         testing::Values(backend_factory{"double", open_on_3fs, true}),
                         [](const auto& chosen) { return chosen.param.name; });

class Hf3fsTest : public testing::Test {
protected:
  result<std::unique_ptr<blocking_store>>
  open(const std::string& folder, const hf3fs_options& options = {HICACHE_HF3FS_DOUBLE}) {
    return make_hf3fs_backend(folder, store_bytes, 0, options, clock_);
  }

  std::string refusal_of(const std::string& folder,
                         const hf3fs_options& options = {HICACHE_HF3FS_DOUBLE}) {
    const auto store = open(folder, options);
    return store ? "" : store.error().detail;
  }

  monotonic_clock clock_;
  mounted_3fs mounted_;
  const std::string folder_ = mounted_.path("pages");
};

TEST_F(Hf3fsTest, WhatWasWrittenIsThereAfterARestart) {
  for (const auto number : {1u, 2u}) {
    const auto store = open(folder_);
    ASSERT_TRUE(store) << store.error().detail;
    EXPECT_EQ((*store)->name(), "hf3fs");
    for (auto i = uint64_t{0}; i < 20; ++i)
      ASSERT_TRUE(put(**store, key_of(100 * number + i), bytes_of(i, page_size)));
  }
  const auto store = open(folder_);
  ASSERT_TRUE(store) << store.error().detail;
  EXPECT_EQ((*store)->health().objects, 40u);
  for (const auto number : {1u, 2u})
    for (auto i = uint64_t{0}; i < 20; ++i)
      EXPECT_EQ(take(**store, key_of(100 * number + i), page_size), bytes_of(i, page_size));
}

TEST_F(Hf3fsTest, EvictsWhatItHasNoRoomFor) {
  const auto store = open(folder_);
  ASSERT_TRUE(store) << store.error().detail;
  for (auto i = uint64_t{0}; i < 400; ++i)
    ASSERT_TRUE(put(**store, key_of(i), bytes_of(i, page_size)));
  EXPECT_GT((*store)->health().counters.evicted, 100u);
  EXPECT_EQ(take(**store, key_of(399), page_size), bytes_of(399, page_size));
}

TEST_F(Hf3fsTest, TransfersThatFailAreFailuresUntilTheyWorkAgain) {
  const auto store = open(folder_);
  ASSERT_TRUE(store) << store.error().detail;
  ASSERT_TRUE(put(**store, key_of(1), bytes_of(1, page_size)));
  std::ofstream{mounted_.path("fails")} << "x";
  EXPECT_EQ(code_of(take(**store, key_of(1), page_size)), ec::io_failure);
  EXPECT_EQ(code_of(put(**store, key_of(2), bytes_of(2, page_size))), ec::io_failure);
  std::filesystem::remove(mounted_.path("fails"));
  EXPECT_TRUE(take(**store, key_of(1), page_size));
  EXPECT_TRUE(put(**store, key_of(2), bytes_of(2, page_size)));
}

TEST_F(Hf3fsTest, ADaemonThatGivesNoMoreRingsIsAFailure) {
  auto device = open_hf3fs_files(folder_, 1 << 20, {HICACHE_HF3FS_DOUBLE});
  ASSERT_TRUE(device) << device.error().detail;
  EXPECT_EQ((*device)->description(), "3FS at " + mounted_.path());
  std::filesystem::remove(mounted_.path("3fs-virt/iovs"));
  EXPECT_EQ(code_of((*device)->open_channel(1 << 20)), ec::io_failure);
}

TEST_F(Hf3fsTest, SaysWhatIsWrong) {
  EXPECT_EQ(refusal_of(folder_, {"libabsent.so"}),
            "key 'library': 3FS's library cannot be loaded: libabsent.so: cannot open shared "
            "object file: No such file or directory");
  EXPECT_EQ(refusal_of(folder_, {"libm.so.6"}),
            "key 'library': libm.so.6 lacks functions of hf3fs_usrbio.h; expected 3FS's "
            "libhf3fs_api_shared.so");
  const auto elsewhere = temporary_folder{};
  EXPECT_EQ(refusal_of(elsewhere.path()),
            "key 'path': " + elsewhere.path()
              + " is not on 3FS; expected a folder below its mount point");
  EXPECT_EQ(refusal_of(elsewhere.path(), {HICACHE_HF3FS_DOUBLE, mounted_.path()}),
            refusal_of(elsewhere.path()));
  EXPECT_EQ(refusal_of(folder_, {HICACHE_HF3FS_DOUBLE, elsewhere.path()}),
            "3FS at " + elsewhere.path()
              + " gives no memory and rings for transfers: No such file or directory");
  const auto first = open(folder_);
  ASSERT_TRUE(first);
  EXPECT_EQ(refusal_of(folder_), "another process uses the folder " + folder_);
  EXPECT_EQ(code_of(make_hf3fs_backend(folder_, 1 << 20, 0, {HICACHE_HF3FS_DOUBLE}, clock_)),
            ec::invalid_argument);
}

/// Numbers are of the structures of src/lib/api/hf3fs_usrbio.h of 3FS at commit 0ea5a9c2, on
/// x86-64.
TEST(Hf3fsLibraryTest, StructuresAreThoseOf3fs) {
  static_assert(std::is_standard_layout_v<hf3fs_ior>);
  EXPECT_EQ(sizeof(hf3fs_iov), 312u);
  EXPECT_EQ(offsetof(hf3fs_iov, iovh), 8u);
  EXPECT_EQ(offsetof(hf3fs_iov, id), 16u);
  EXPECT_EQ(offsetof(hf3fs_iov, mount_point), 32u);
  EXPECT_EQ(offsetof(hf3fs_iov, size), 288u);
  EXPECT_EQ(offsetof(hf3fs_iov, block_size), 296u);
  EXPECT_EQ(offsetof(hf3fs_iov, numa), 304u);
  EXPECT_EQ(sizeof(hf3fs_ior), 600u);
  EXPECT_EQ(offsetof(hf3fs_ior, iorh), 312u);
  EXPECT_EQ(offsetof(hf3fs_ior, mount_point), 320u);
  EXPECT_EQ(offsetof(hf3fs_ior, for_read), 576u);
  EXPECT_EQ(offsetof(hf3fs_ior, io_depth), 580u);
  EXPECT_EQ(offsetof(hf3fs_ior, flags), 592u);
  EXPECT_EQ(sizeof(hf3fs_cqe), 24u);
  EXPECT_EQ(offsetof(hf3fs_cqe, result), 8u);
  EXPECT_EQ(offsetof(hf3fs_cqe, userdata), 16u);
}

} // namespace
} // namespace hicache::test
