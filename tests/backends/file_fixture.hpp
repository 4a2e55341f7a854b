#pragma once

#include "backends/file_backend.hpp"
#include "backends/store_outcomes.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/support/manual_clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

namespace hicache::test {

inline constexpr uint64_t fingerprint = 0x1122334455667788;

/// Of a page, in bytes; and of its file.
inline constexpr size_t size = 200;
inline constexpr auto file_bytes = size + page_header_bytes;

/// Stores in a folder of the test's own.
class FileBackendTest : public testing::Test {
protected:
  std::unique_ptr<blocking_store> open(uint64_t max_bytes = 0) {
    auto store = make_file_backend({{folder_.path(), max_bytes}, fingerprint}, clock_);
    EXPECT_TRUE(store) << store.error().detail;
    return std::move(*store);
  }

  std::string file_of(uint64_t number) const {
    const auto digits = to_string(key_of(number));
    return folder_.path() + '/' + digits.substr(0, 2) + '/' + digits + ".kv";
  }

  static page_bytes read_file(const std::string& path) {
    auto bytes = page_bytes(std::filesystem::file_size(path));
    auto file = std::ifstream{path, std::ios::binary};
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return bytes;
  }

  static void write_file(const std::string& path, std::span<const std::byte> bytes) {
    std::filesystem::create_directories(std::filesystem::path{path}.parent_path());
    auto file = std::ofstream{path, std::ios::binary | std::ios::trunc};
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  /// Sets the time of last change, in seconds since 1970.
  static void set_time(const std::string& path, time_t seconds) {
    const auto times = std::array{timespec{seconds, 0}, timespec{seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  }

  /// Expects that reading page 1 finds damage, counts it, and removes the file.
  void expect_corrupt(blocking_store& store, const std::string& what) {
    SCOPED_TRACE(what);
    const auto before = store.health().counters.corrupt;
    const auto page = take(store, key_of(1), size);
    ASSERT_EQ(code_of(page), ec::corrupt_page);
    EXPECT_THAT(page.error().detail,
                testing::AnyOf(testing::HasSubstr(file_of(1)), other_namespace().detail));
    EXPECT_EQ(store.health().counters.corrupt, before + 1);
    EXPECT_FALSE(std::filesystem::exists(file_of(1)));
    EXPECT_EQ(store.health().objects, 0u);
    EXPECT_EQ(code_of(take(store, key_of(1), size)), ec::not_found);
  }

  /// Of all files but the logs.
  uint64_t bytes_on_disk() const {
    auto total = uint64_t{0};
    for (const auto& entry : std::filesystem::recursive_directory_iterator{folder_.path()})
      if (entry.is_regular_file() && entry.path().extension() != ".log")
        total += entry.file_size();
    return total;
  }

  /// Where the logs are, and what is being written.
  std::string logs() const { return folder_.path() + "/.hicache"; }

  /// Puts a page that follows on another one.
  static result<void> put_after(blocking_store& store, uint64_t number, uint64_t parent) {
    const auto bytes = bytes_of(number, size);
    return store.set(std::vector{page_write{key_of(number), key_of(parent), {bytes}}},
                     no_deadline)[0];
  }

  temporary_folder folder_;
  manual_clock clock_;
};

} // namespace hicache::test
