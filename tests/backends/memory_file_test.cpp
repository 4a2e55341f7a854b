#include "backends/memory_file.hpp"
#include "base/units.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace hicache::test {
namespace {

using namespace literals;

class MemoryFileTest : public ::testing::Test {
protected:
  memory_file open(uint64_t bytes = 1_MiB) {
    auto file = memory_file::open(path_, bytes);
    EXPECT_TRUE(file) << to_string(file.error());
    return std::move(*file);
  }

  /// The sentence, which has to name the file.
  std::string refused(uint64_t bytes = 1_MiB) {
    const auto file = memory_file::open(path_, bytes);
    EXPECT_FALSE(file);
    if (file)
      return {};
    EXPECT_NE(file.error().detail.find(path_), std::string::npos) << file.error().detail;
    return file.error().detail;
  }

  void write(const std::string& text) { std::ofstream{path_} << text; }

  std::string content() const {
    auto file = std::ifstream{path_};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  void flip(uint64_t offset) {
    auto file = std::fstream{path_, std::ios::in | std::ios::out | std::ios::binary};
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
  }

  temporary_folder folder_;
  std::string path_ = folder_.path() + "/memory";
};

TEST_F(MemoryFileTest, ANewFileIsOfItsOwnerAloneAndHasRoomForAllOfItself) {
  const auto file = open();
  EXPECT_FALSE(file.contents().has_pages);
  EXPECT_EQ(file.memory().size(), 1_MiB);
  EXPECT_EQ(file.page_bytes(), 1_MiB - memory_label_bytes);
  struct stat status = {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  EXPECT_GE(static_cast<uint64_t>(status.st_blocks) * 512, 1_MiB);
}

TEST_F(MemoryFileTest, TheNextOneFindsWhatWasWritten) {
  auto seed = uint64_t{0};
  {
    auto file = open();
    seed = file.contents().seed;
    file.memory().bytes()[100] = std::byte{42};
  }
  const auto file = open();
  EXPECT_TRUE(file.contents().has_pages);
  EXPECT_EQ(file.contents().seed, seed);
  EXPECT_EQ(file.memory().bytes()[100], std::byte{42});
}

TEST_F(MemoryFileTest, ItIsOfOneNodeAtATime) {
  auto file = std::optional{open()};
  EXPECT_NE(refused().find("another node"), std::string::npos);
  // A client keeps the memory for longer than the node.
  const auto client
    = mapped_peer_memory::open(unique_fd{::fcntl(file->memory().fd(), F_DUPFD_CLOEXEC, 0)});
  ASSERT_TRUE(client) << to_string(client.error());
  file.reset();
  EXPECT_TRUE(open().contents().has_pages);
}

TEST_F(MemoryFileTest, AFileOfAnotherSizeIsRefusedAndKept) {
  open().memory().bytes()[100] = std::byte{42};
  EXPECT_NE(refused(2_MiB).find("1.0 MiB"), std::string::npos);
  EXPECT_EQ(open().memory().bytes()[100], std::byte{42});
}

TEST_F(MemoryFileTest, WhatIsNotOursIsNotTouched) {
  for (const auto& text :
       {std::string{"a letter"}, std::string(1_MiB, 'x'), std::string(1_MiB, '\0')}) {
    write(text);
    EXPECT_NE(refused().find("was not written by a node"), std::string::npos);
    EXPECT_EQ(content(), text);
  }
}

TEST_F(MemoryFileTest, AFileOfAnotherUserIsRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can give a file away";
  write("");
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_NE(refused().find("65534"), std::string::npos);
}

TEST_F(MemoryFileTest, AnEmptyFileBecomesOurs) {
  write("");
  EXPECT_FALSE(open().contents().has_pages);
  EXPECT_TRUE(open().contents().has_pages);
}

TEST_F(MemoryFileTest, ADamagedLabelCostsThePages) {
  const auto seed = open().contents().seed;
  flip(1_MiB - memory_label_bytes + 20);
  const auto file = open();
  EXPECT_FALSE(file.contents().has_pages);
  EXPECT_NE(file.contents().seed, seed);
}

TEST_F(MemoryFileTest, OneWhoseMakerWasKilledIsMadeAnew) {
  write(std::string(1_MiB, '\0'));
  {
    auto label = page_bytes(memory_label_bytes);
    write_label(label, {1_MiB, 0});
    auto file = std::fstream{path_, std::ios::in | std::ios::out | std::ios::binary};
    file.write(reinterpret_cast<const char*>(label.data()), memory_label_bytes);
  }
  {
    const auto file = open();
    EXPECT_FALSE(file.contents().has_pages);
    EXPECT_EQ(file.memory().bytes()[0], std::byte{0});
  }
  EXPECT_TRUE(open().contents().has_pages);
}

TEST_F(MemoryFileTest, WhatCannotBeOpenedIsOneSentence) {
  std::filesystem::create_directory(path_);
  refused();
  path_ = folder_.path() + "/no/folder";
  refused();
  path_ = "/dev/null";
  EXPECT_NE(refused().find("regular file"), std::string::npos);
}

TEST_F(MemoryFileTest, WithoutRoomNothingIsLeftBehind) {
  const auto file = memory_file::open(path_, uint64_t{1} << 60);
  ASSERT_FALSE(file);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

} // namespace
} // namespace hicache::test
