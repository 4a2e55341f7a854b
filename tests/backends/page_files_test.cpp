// Pages of several namespaces in one folder, whose lengths nobody knows but their files.

#include "backends/page_files.hpp"
#include "base/page_checksum.hpp"
#include "tests/backends/file_fixture.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

class PageFilesTest : public FileBackendTest {
protected:
  void SetUp() override { files_ = page_files::open({folder_.path(), 0}, clock_).value(); }

  void keep(uint64_t number, size_t bytes, uint64_t space) {
    const auto page = bytes_of(number, bytes);
    ASSERT_TRUE(
      files_->set(std::vector{page_write{key_of(number), {}, {page}}}, {}, space, no_deadline)[0]);
  }

  std::unique_ptr<page_files> files_;
};

TEST_F(PageFilesTest, TellsLengthsOfPagesOfTheNamespace) {
  keep(1, 100, 7);
  keep(2, 5000, 7);
  keep(3, 100, 8);
  write_file(file_of(4), bytes_of(4, 500));
  const auto keys = std::vector{key_of(1), key_of(2), key_of(3), key_of(4), key_of(5)};
  const auto expected = std::vector<std::optional<uint32_t>>{100, 5000, {}, {}, {}};
  EXPECT_EQ(files_->lengths(keys, 7, no_deadline), expected);
  EXPECT_EQ(files_->lengths(keys, 7, clock_.now()), (std::vector<std::optional<uint32_t>>(5)));
}

TEST_F(PageFilesTest, AChecksumThatIsGivenIsWhatReadersVerify) {
  const auto page = bytes_of(1, size);
  const auto parts = std::vector<std::span<const std::byte>>{page};
  const auto right = page_checksum(parts);
  const auto write = [&](uint64_t checksum) {
    return files_->set(std::vector{page_write{key_of(1), {}, parts}}, std::vector{checksum}, 7,
                       no_deadline)[0];
  };
  auto back = page_bytes(size);
  const auto read = [&] {
    return files_
      ->read(std::vector{page_read{key_of(1), {back}}}, 7, part_lengths::exact, no_deadline)[0]
      .map([](const auto& found) { return found.checksum; });
  };
  ASSERT_TRUE(write(right));
  EXPECT_EQ(read(), right);
  EXPECT_EQ(back, page);
  ASSERT_TRUE(files_->remove(std::vector{key_of(1)}, 7, no_deadline)[0]);
  ASSERT_TRUE(write(right + 1));
  EXPECT_EQ(code_of(read()), ec::corrupt_page);
}

TEST_F(PageFilesTest, RemovesPagesOfTheNamespaceAlone) {
  keep(1, size, 7);
  keep(2, size, 8);
  write_file(file_of(3), bytes_of(3, 500));
  for (const auto& done :
       files_->remove(std::vector{key_of(1), key_of(2), key_of(3)}, 7, no_deadline))
    EXPECT_TRUE(done);
  EXPECT_FALSE(std::filesystem::exists(file_of(1)));
  EXPECT_TRUE(std::filesystem::exists(file_of(2)));
  EXPECT_FALSE(std::filesystem::exists(file_of(3))) << "it is no page of anybody";
  EXPECT_EQ(code_of(files_->remove(std::vector{key_of(2)}, 8, clock_.now())[0]),
            ec::deadline_exceeded);
}

TEST_F(PageFilesTest, ClearsANamespace) {
  for (auto number = uint64_t{0}; number < 20; ++number)
    keep(number, size, 7 + number % 2);
  auto removed = uint64_t{0};
  for (const auto& directory : files_->directories())
    removed += files_->clear(directory, 7);
  EXPECT_EQ(removed, 10u);
  for (auto number = uint64_t{0}; number < 20; ++number)
    EXPECT_EQ(std::filesystem::exists(file_of(number)), number % 2 == 1) << number;
  EXPECT_EQ(files_->health().objects, 10u);
}

} // namespace
} // namespace hicache::test
