// The store `file` on a folder of very many files: as many as HICACHE_FOLDER_FILES says, with
// bounds on the time that calls take; else a few thousand, and bounds that a busy machine keeps.

#include "tests/backends/file_fixture.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;
using seconds = std::chrono::duration<double>;

/// Pages of one prompt, each after the one before.
constexpr auto prompt_pages = uint64_t{64};

struct extent {
  uint64_t files = 3000;
  /// Within which any call ends, opening included.
  seconds call_time = 60s;
};

extent extent_of_test() {
  const auto* const files = std::getenv("HICACHE_FOLDER_FILES");
  return files == nullptr ? extent{} : extent{std::strtoull(files, nullptr, 10), 1s};
}

/// Resident memory of this process.
uint64_t resident_bytes() {
  auto file = std::ifstream{"/proc/self/statm"};
  auto whole = uint64_t{0};
  auto resident = uint64_t{0};
  file >> whole >> resident;
  return resident * 4096;
}

class LargeFolderTest : public FileBackendTest {
protected:
  void fill() {
    const auto count = extent_.files;
    const auto store = open();
    constexpr auto batch = uint64_t{1024};
    for (auto first = uint64_t{0}; first < count; first += batch) {
      const auto end = std::min(count, first + batch);
      auto bytes = std::vector<page_bytes>{};
      for (auto i = first; i < end; ++i)
        bytes.push_back(bytes_of(i, size));
      auto pages = std::vector<page_write>{};
      for (auto i = first; i < end; ++i)
        pages.push_back({key_of(i),
                         i % prompt_pages == 0 ? page_key{} : key_of(i - 1),
                         {bytes[static_cast<size_t>(i - first)]}});
      for (const auto& answer : store->set(pages, no_deadline))
        ASSERT_TRUE(answer) << answer.error().detail;
    }
  }

  static seconds since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::steady_clock::now() - begin;
  }

  /// Opens the store and uses it until it knows all of the pages.
  void open_and_use() {
    const auto count = extent_.files;
    const auto seed = std::random_device{}();
    SCOPED_TRACE(seed);
    auto random = std::mt19937_64{seed};
    auto stored = count;
    ::malloc_trim(0); // What filled the folder is no part of it.
    const auto before = resident_bytes();
    const auto begin = std::chrono::steady_clock::now();
    const auto store = open();
    const auto get_one = [&] {
      const auto number = random() % count;
      EXPECT_EQ(take(*store, key_of(number), size).value(), bytes_of(number, size));
    };
    const auto put_one = [&] {
      EXPECT_TRUE(put(*store, key_of(stored), bytes_of(stored, size)));
      ++stored;
    };
    get_one();
    const auto first_get = since(begin);
    put_one();
    const auto first_put = since(begin);
    EXPECT_LT(first_put, extent_.call_time);
    const auto known_then = store->health().objects;
    auto longest = seconds::zero();
    auto rounds = uint64_t{0};
    while (store->health().objects < stored) {
      const auto round = std::chrono::steady_clock::now();
      get_one();
      if (++rounds % 1024 == 0)
        put_one();
      longest = std::max(longest, since(round));
      ASSERT_LT(since(begin), 30min);
    }
    const auto complete = since(begin);
    const auto health = store->health();
    EXPECT_EQ(health.objects, stored);
    EXPECT_EQ(health.bytes, stored * file_bytes);
    EXPECT_LT(longest, extent_.call_time);
    std::printf(
      "%llu files: first get after %.3f s, first put after %.3f s (%llu pages known "
      "then), all known after %.1f s, meanwhile %llu gets, the longest %.3f s; %.0f bytes "
      "of memory a page\n",
      static_cast<unsigned long long>(count), first_get.count(), first_put.count(),
      static_cast<unsigned long long>(known_then), complete.count(),
      static_cast<unsigned long long>(rounds), longest.count(),
      static_cast<double>(resident_bytes() - before) / static_cast<double>(stored));
  }
  const extent extent_ = extent_of_test();
};

TEST_F(LargeFolderTest, ServesAtOnceAndKnowsAllPagesLater) {
  const auto begin = std::chrono::steady_clock::now();
  fill();
  std::printf("filled in %.1f s\n", since(begin).count());
  open_and_use();
}

TEST_F(LargeFolderTest, ServesAtOnceAndTakesAFolderWithoutLogsOver) {
  fill();
  std::filesystem::remove_all(logs());
  open_and_use();
}

} // namespace
} // namespace hicache
