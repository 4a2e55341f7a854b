#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/sized_reads.hpp"
#include "backends/storage_queue.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/faulty_store.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/support/manual_clock.hpp"

#include <fstream>

namespace hicache::test {
namespace {

using lengths = std::vector<result<uint64_t>>;

/// The stores that tell lengths, by number.
class SizedReadsTest : public testing::TestWithParam<const char*> {
protected:
  SizedReadsTest()
    : store_(GetParam() == std::string_view{"memory"}
               ? make_memory_backend(0, clock_)
               : std::move(make_file_backend({{folder_.path(), 0}, 7}, clock_).value())) {}

  result<uint64_t> read_into(uint64_t number, std::vector<std::span<std::byte>> parts,
                             time_point deadline = no_deadline) {
    return store_
      ->read(std::vector{page_read{key_of(number), std::move(parts)}}, part_lengths::bounded,
             deadline)
      .at(0);
  }

  manual_clock clock_;
  temporary_folder folder_;
  std::unique_ptr<blocking_store> store_;
};

TEST_P(SizedReadsTest, AnObjectFillsTheBeginningOfItsParts) {
  EXPECT_TRUE(store_->tells_lengths());
  for (const auto length : {size_t{0}, size_t{1}, size_t{99}, size_t{20'000}}) {
    const auto object = bytes_of(length, length);
    ASSERT_TRUE(put(*store_, key_of(length), object));
    for (const auto& cuts : {std::vector<size_t>{}, {0, 50}, std::vector<size_t>(70, 3)}) {
      auto back = page_bytes(20'100, std::byte{7});
      EXPECT_EQ(read_into(length, cut(back, cuts)), length);
      EXPECT_TRUE(std::equal(object.begin(), object.end(), back.begin()));
      EXPECT_TRUE(std::all_of(back.begin() + static_cast<ptrdiff_t>(length), back.end(),
                              [](auto byte) { return byte == std::byte{7}; }));
    }
  }
}

TEST_P(SizedReadsTest, PartsOfTheObjectsLengthAreEnoughAndShorterOnesAreRefused) {
  const auto object = bytes_of(1, 1000);
  ASSERT_TRUE(put(*store_, key_of(1), object));
  auto back = page_bytes(1000);
  EXPECT_EQ(read_into(1, {back}), 1000u);
  EXPECT_EQ(back, object);
  EXPECT_EQ(code_of(read_into(1, {std::span{back}.first(999)})), ec::invalid_argument);
  EXPECT_EQ(code_of(read_into(1, {})), ec::invalid_argument);
  EXPECT_TRUE(has(*store_, key_of(1)));
}

TEST_P(SizedReadsTest, CountsAsAnyRead) {
  ASSERT_TRUE(put(*store_, key_of(1), bytes_of(1, 10)));
  auto back = page_bytes(100);
  EXPECT_TRUE(read_into(1, {back}));
  EXPECT_EQ(code_of(read_into(2, {back})), ec::not_found);
  EXPECT_EQ(code_of(read_into(1, {back}, clock_.now())), ec::deadline_exceeded);
  EXPECT_EQ(store_->health().counters, (backend_counters{.hits = 1, .misses = 1, .errors = 1}));
}

TEST_P(SizedReadsTest, ComeThroughAQueue) {
  auto queue = storage_queue{std::move(store_), 1};
  EXPECT_EQ(sized_reads_of(queue), &queue);
  const auto object = bytes_of(1, 10);
  const auto writes = std::vector{page_write{key_of(1), {}, {object}}};
  ASSERT_TRUE(waiting_store::wait<std::vector<result<void>>>([&](auto done) {
                queue.write(writes, no_deadline, done);
              }).at(0));
  auto back = page_bytes(100);
  EXPECT_EQ(waiting_store::wait<lengths>([&](auto done) {
              queue.read_sized(std::vector{page_read{key_of(1), {back}}}, no_deadline, done);
            }).at(0),
            10u);
}

INSTANTIATE_TEST_SUITE_P(Stores, SizedReadsTest, testing::Values("memory", "file"),
                         [](const auto& chosen) { return std::string{chosen.param}; });

TEST(SizedFilesTest, ADamagedFileIsCorruptAndGone) {
  const auto folder = temporary_folder{};
  auto clock = manual_clock{};
  const auto store = std::move(make_file_backend({{folder.path(), 0}, 7}, clock).value());
  for (const auto kept : {0, 50, 187}) {
    ASSERT_TRUE(put(*store, key_of(1), bytes_of(1, 100)));
    for (const auto& entry : std::filesystem::recursive_directory_iterator{folder.path()})
      if (entry.path().extension() == ".kv")
        std::filesystem::resize_file(entry.path(), static_cast<uintmax_t>(kept));
    auto back = page_bytes(200);
    const auto read
      = store->read(std::vector{page_read{key_of(1), {back}}}, part_lengths::bounded, no_deadline)
          .at(0);
    EXPECT_EQ(code_of(read), ec::corrupt_page) << kept;
    EXPECT_FALSE(has(*store, key_of(1)));
  }
}

/// A store in front that knows nothing of them.
TEST(SizedReadsOfOthersTest, AreNone) {
  auto clock = manual_clock{};
  auto plain = faulty_store{std::make_unique<storage_queue>(make_memory_backend(0, clock), 1)};
  EXPECT_EQ(sized_reads_of(plain), nullptr);
}

} // namespace
} // namespace hicache::test
