// The store `disk` with very many pages: as many as HICACHE_DISK_PAGES says in its index, and as
// many bytes as HICACHE_DISK_BYTES says in files, with bounds on the time that calls take; else a
// few, and bounds that a busy machine keeps.

#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_log.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace hicache::test {
namespace {

using seconds = std::chrono::duration<double>;

constexpr auto page_size = uint64_t{64} << 10;
constexpr auto segment_bytes = uint64_t{256} << 20;
/// Pages of one prompt, each after the one before, and of one record.
constexpr auto prompt_pages = uint64_t{64};

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const auto* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// A key for each number, cheaper than key_of.
page_key large_key(uint64_t number) {
  auto key = page_key{};
  for (auto i = size_t{0}; i < 4; ++i) {
    number = (number + i + 1) * 0x9E3779B97F4A7C15;
    number ^= number >> 29;
    std::memcpy(&key.bytes[8 * i], &number, 8);
  }
  return key;
}

page_key parent_of(uint64_t number) {
  return number % prompt_pages == 0 ? page_key{} : large_key(number - 1);
}

/// Runs something and notes the longest run.
class stopwatch {
public:
  template <class Action>
  void time(Action action) {
    const auto begun = std::chrono::steady_clock::now();
    action();
    longest_ = std::max(longest_, seconds{std::chrono::steady_clock::now() - begun});
  }

  seconds longest() const { return longest_; }

private:
  seconds longest_{};
};

/// From the heap, large tables included.
uint64_t allocated_bytes() {
  const auto heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

disk_record record_from(uint64_t first, uint64_t count) {
  auto record = disk_record{};
  for (auto i = first; i < first + count; ++i)
    record.objects.push_back({large_key(i), parent_of(i), page_size, i});
  return record;
}

/// Makes room for a record, appends and commits it.
disk_log::slot append(disk_log& log, disk_record& record) {
  auto gone = std::vector<disk_log::evicted>{};
  for (const auto& object : record.objects)
    EXPECT_TRUE(log.begin_write(object.key, object.parent, object.length, gone));
  const auto bytes = disk_record_bytes(record);
  for (auto step = log.next_step(bytes, false); step != disk_log::step::none;
       step = log.next_step(bytes, false)) {
    if (step == disk_log::step::create_segment)
      log.add_segment(log.next_segment());
    else
      log.free(log.victim());
  }
  const auto where = log.allocate(bytes);
  record.generation = where.generation;
  record.sequence = where.sequence;
  log.commit(where, record);
  for (const auto& object : record.objects)
    log.end_write(object.key, true);
  return where;
}

TEST(LargeDisk, TheIndexHoldsManyPages) {
  const auto count = number_from("HICACHE_DISK_PAGES", 100000) / prompt_pages * prompt_pages;
  const auto is_large = std::getenv("HICACHE_DISK_PAGES") != nullptr;
  const auto segments = static_cast<uint32_t>(2 * count * page_size / segment_bytes + 8);
  const auto before = allocated_bytes();
  auto log = std::optional<disk_log>{std::in_place, segment_bytes, segments, count * page_size};
  auto watch = stopwatch{};
  auto written = std::vector<disk_log::slot>{};
  for (auto first = uint64_t{0}; first < count; first += prompt_pages)
    watch.time([&] {
      auto record = record_from(first, prompt_pages);
      written.push_back(append(*log, record));
    });
  EXPECT_EQ(log->size(), count);
  const auto bytes = static_cast<double>(allocated_bytes() - before) / static_cast<double>(count);
  for (auto i = uint64_t{0}; i < count; i += 997)
    ASSERT_EQ(log->find(large_key(i)).value().checksum, i);
  auto listed = uint64_t{0};
  auto from = std::string{};
  do
    watch.time([&] {
      const auto part = log->list(from);
      ASSERT_TRUE(part);
      listed += part->objects.size();
      from = part->next;
    });
  while (!from.empty());
  EXPECT_EQ(listed, count);

  // After a restart, from the headers of the records.
  log.emplace(segment_bytes, segments, count * page_size);
  const auto begun = std::chrono::steady_clock::now();
  for (auto i = uint32_t{0}; i <= written.back().segment; ++i)
    log->add_segment(i);
  for (auto i = size_t{0}; i < written.size(); ++i) {
    auto record = record_from(i * prompt_pages, prompt_pages);
    record.generation = written[i].generation;
    record.sequence = written[i].sequence;
    log->recover(written[i].segment, written[i].offset, record, {});
  }
  log->end_recovery(written.back().sequence);
  const auto restart = seconds{std::chrono::steady_clock::now() - begun};
  EXPECT_EQ(log->size(), count);
  for (auto i = uint64_t{0}; i < count; i += 997)
    ASSERT_EQ(log->find(large_key(i)).value().checksum, i);
  std::printf("%lu pages: %.0f bytes each, a record in %.1f ms at most, recovered in %.1f s\n",
              count, bytes, watch.longest().count() * 1e3, restart.count());
  EXPECT_LT(bytes, 400);
  EXPECT_LT(watch.longest(), seconds{is_large ? 1 : 60});
  EXPECT_LT(restart, seconds{is_large ? 120 : 600});
}

/// The bytes of a page: words that count.
void fill(page_bytes& page, uint64_t number) {
  for (auto at = size_t{0}; at < page.size(); at += 8) {
    const auto word = number * page.size() + at;
    std::memcpy(&page[at], &word, 8);
  }
}

TEST(LargeDisk, WhatIsWrittenIsThereAfterARestart) {
  const auto count = number_from("HICACHE_DISK_BYTES", uint64_t{64} << 20) / page_size
                     / prompt_pages * prompt_pages;
  const auto folder = temporary_folder{};
  const auto clock = monotonic_clock{};
  const auto open = [&] {
    auto store = make_disk_backend(
      folder.path(), std::max<uint64_t>(3 * count * page_size / 2, uint64_t{64} << 20), 0, clock);
    EXPECT_TRUE(store) << store.error().detail;
    return std::move(*store);
  };
  auto pages = std::vector<page_bytes>(prompt_pages, page_bytes(page_size));
  {
    const auto store = open();
    for (auto first = uint64_t{0}; first < count; first += prompt_pages) {
      auto writes = std::vector<page_write>{};
      for (auto i = size_t{0}; i < prompt_pages; ++i) {
        fill(pages[i], first + i);
        writes.push_back({large_key(first + i), parent_of(first + i), {pages[i]}});
      }
      for (const auto& stored : store->set(writes, no_deadline))
        ASSERT_TRUE(stored) << stored.error().detail;
    }
  }
  const auto store = open();
  EXPECT_EQ(store->health().objects, count);
  auto expected = page_bytes(page_size);
  for (auto first = uint64_t{0}; first < count; first += prompt_pages) {
    auto reads = std::vector<page_read>{};
    for (auto i = size_t{0}; i < prompt_pages; ++i)
      reads.push_back({large_key(first + i), {pages[i]}});
    for (const auto& found : store->get(reads, no_deadline))
      ASSERT_TRUE(found) << found.error().detail;
    for (auto i = size_t{0}; i < prompt_pages; ++i) {
      fill(expected, first + i);
      ASSERT_TRUE(pages[i] == expected) << "page " << first + i;
    }
  }
}

} // namespace
} // namespace hicache::test
