// A store without ranks.

#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "hicache/store.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/faulty_store.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>

namespace hicache::test {
namespace {

constexpr auto patience = std::chrono::seconds{60};
/// For calls that are not answered in time.
constexpr auto impatience = std::chrono::milliseconds{1};

std::string complaint(store_options options) {
  const auto opened = store::open(options);
  if (opened)
    return "none";
  EXPECT_EQ(opened.error().code, ec::invalid_argument);
  return opened.error().detail;
}

store_options files_in(const temporary_folder& folder, std::string identity = "ours") {
  return {.backend = "file",
          .extra_config = R"({"path": ")" + folder.path() + R"("})",
          .identity = std::move(identity)};
}

std::vector<page_write> one_write(const page_bytes& bytes) {
  return {{key_of(1), {}, {bytes}}};
}

TEST(StoreTest, KeepsObjectsForTheNextProcess) {
  const auto folder = temporary_folder{};
  const auto bytes = bytes_of(1, 5000);
  {
    const auto first = store::open(files_in(folder));
    ASSERT_TRUE(first) << first.error().detail;
    EXPECT_EQ(code_of((*first)->lookup({key_of(1)}, patience).at(0)), ec::not_found);
    EXPECT_TRUE((*first)->write(one_write(bytes), patience).at(0));
  }
  const auto next = store::open(files_in(folder));
  ASSERT_TRUE(next) << next.error().detail;
  const auto places = (*next)->lookup({key_of(1), key_of(2)}, patience);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_TRUE(places[0]);
  EXPECT_FALSE(places[1]);
  auto back = page_bytes(bytes.size());
  EXPECT_TRUE((*next)->read({{key_of(1), {back}, *places[0]}}, patience).at(0));
  EXPECT_EQ(back, bytes);
  EXPECT_TRUE((*next)->health().ok);
  EXPECT_TRUE((*next)->remove({key_of(1)}, patience).at(0));
  EXPECT_EQ(code_of((*next)->read({{key_of(1), {back}}}, patience).at(0)), ec::not_found);
}

TEST(StoreTest, ObjectsOfAnotherIdentityDoNotVerify) {
  const auto folder = temporary_folder{};
  const auto bytes = bytes_of(1, 100);
  ASSERT_TRUE((*store::open(files_in(folder)))->write(one_write(bytes), patience).at(0));
  const auto others = store::open(files_in(folder, "theirs"));
  auto back = page_bytes(bytes.size());
  EXPECT_EQ(code_of((*others)->read({{key_of(1), {back}}}, patience).at(0)), ec::corrupt_page);
}

TEST(StoreTest, OpensTiersWithCodecs) {
  const auto folder = temporary_folder{};
  const auto options = store_options{
    .backend = "tiered",
    .extra_config = R"({"tiers": [{"backend": "memory", "write": "never"}, {"backend": "disk",
                     "max_bytes": "64MiB", "codecs": "zstd", "path": ")"
                    + folder.path() + R"("}]})"};
  const auto tiers = store::open(options);
  ASSERT_TRUE(tiers) << tiers.error().detail;
  const auto bytes = page_bytes(50000, std::byte{7});
  ASSERT_TRUE((*tiers)->write(one_write(bytes), patience).at(0));
  auto back = page_bytes(bytes.size());
  EXPECT_TRUE((*tiers)->read({{key_of(1), {back}}}, patience).at(0));
  EXPECT_EQ(back, bytes);
  const auto health = (*tiers)->health();
  ASSERT_EQ(health.tiers.size(), 2u);
  EXPECT_EQ(health.tiers[0].health.objects, 0u);
  EXPECT_LT(health.tiers[1].health.bytes, bytes.size());
}

TEST(StoreTest, SaysWhatIsWrong) {
  EXPECT_EQ(complaint({.backend = "tape"}), "store 'tape' is not known; expected file, disk, "
                                            "hf3fs, memory, cluster, node, redis, s3, external, "
                                            "dynamic, mooncake, nixl or lmcache, or tiered");
  EXPECT_EQ(complaint({.backend = "cluster"}),
            "store 'cluster' needs the actors of a rank; expected another one");
  EXPECT_EQ(complaint({.backend = "file"}),
            "store 'file' needs a folder; expected the extra configuration '{\"path\": \"DIR\"}'");
  EXPECT_EQ(complaint({.backend = "hf3fs", .extra_config = R"({"path": "DIR"})"}),
            "store 'hf3fs' needs a folder and a size; expected the extra configuration "
            "'{\"path\": \"DIR\", \"max_bytes\": \"SIZE\"}'");
  EXPECT_EQ(complaint({.backend = "tiered"}),
            "store 'tiered' and key 'tiers' belong together; expected both or neither");
  EXPECT_EQ(
    complaint({.backend = "tiered",
               .extra_config = R"({"tiers": [{"backend": "memory"}, {"backend": "node"}]})"}),
    "tier 2: store 'node' needs the actors of a rank; expected another one");
  EXPECT_EQ(complaint({.backend = "memory", .extra_config = R"({"threads": 0})"}),
            "the extra configuration: key 'threads' holds 0; expected a positive number");
  EXPECT_EQ(complaint({.backend = "memory", .rank = 2, .ranks = 2}),
            "rank 2 of 2; expected a number below that of all");
}

class StuckStoreTest : public testing::Test {
protected:
  StuckStoreTest() {
    auto inner = std::make_unique<faulty_store>(
      std::make_unique<storage_queue>(make_memory_backend(0, clock_), 1),
      [](batch_kind) { return store_fault::stuck; });
    faulty_ = inner.get();
    store_.emplace(std::move(inner));
  }

  monotonic_clock clock_;
  faulty_store* faulty_ = nullptr;
  std::optional<store> store_;
};

TEST_F(StuckStoreTest, CallsThatTouchNoMemoryEndAtTheTimeout) {
  EXPECT_EQ(code_of(store_->lookup({key_of(1)}, impatience).at(0)), ec::deadline_exceeded);
  EXPECT_EQ(code_of(store_->remove({key_of(1)}, impatience).at(0)), ec::deadline_exceeded);
  faulty_->release();
}

TEST_F(StuckStoreTest, ReadsWaitUntilTheirMemoryIsFree) {
  auto bytes = page_bytes(100);
  auto read = std::async(std::launch::async, [&] {
    return store_->read({{key_of(1), {bytes}}}, impatience).at(0);
  });
  EXPECT_EQ(read.wait_for(20 * impatience), std::future_status::timeout);
  while (!faulty_->release_one(store_fault::stuck))
    std::this_thread::yield();
  EXPECT_EQ(code_of(read.get()), ec::not_found);
}

} // namespace
} // namespace hicache::test
