#include "backends/disk/disk_files.hpp"
#include "tests/backends/disk/disk_support.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <set>

namespace hicache::test {
namespace {

constexpr auto segment_bytes = uint64_t{1} << 18;
constexpr auto page_size = size_t{10000};
/// Of a page, on the disk.
constexpr auto page_space = disk_blocks_for(page_size);

class DiskBackendTest : public testing::Test {
protected:
  blocking_store& open(disk_options options) {
    store_.reset();
    store_ = open_store(std::move(options), image_, clock_);
    return *store_;
  }

  static result<void> put_page(blocking_store& store, uint64_t number) {
    return put(store, key_of(number), bytes_of(number, page_size));
  }

  static void expect_page(blocking_store& store, uint64_t number) {
    const auto found = take(store, key_of(number), page_size);
    ASSERT_TRUE(found) << number << ": " << to_string(found.error());
    EXPECT_EQ(*found, bytes_of(number, page_size));
  }

  manual_clock clock_;
  disk_image image_{segment_bytes};
  std::unique_ptr<blocking_store> store_;
  const disk_options large_ = options_for(200 * page_space, segment_bytes);
};

TEST_F(DiskBackendTest, WhatWasWrittenIsThereAfterARestart) {
  for (const auto number : {1u, 2u})
    ASSERT_TRUE(put_page(open(large_), number));
  auto& store = open(large_);
  for (const auto number : {1u, 2u})
    expect_page(store, number);
  EXPECT_EQ(store.health().objects, 2u);
  EXPECT_EQ(store.health().bytes, 2 * page_space);
}

TEST_F(DiskBackendTest, ObjectsOfAnyLength) {
  const auto sizes = std::array{0u, 1u, 4095u, 4096u, 4097u, 200000u};
  for (const auto size : sizes)
    ASSERT_TRUE(put(open(large_), key_of(size), bytes_of(size, size)));
  for (const auto size : sizes)
    EXPECT_EQ(take(*store_, key_of(size), size).value(), bytes_of(size, size));
  auto room = page_bytes(5000);
  const auto found = store_->read(std::vector{page_read{key_of(4097), cut(room, {77})}},
                                  part_lengths::bounded, no_deadline);
  EXPECT_EQ(found.at(0).value(), 4097u);
  const auto refused = put(*store_, key_of(7), page_bytes(segment_bytes));
  EXPECT_EQ(code_of(refused), ec::store_full) << "longer than a segment";
}

TEST_F(DiskBackendTest, LongBatchesTakeSeveralRecords) {
  auto& store = open(large_);
  auto bytes = std::vector<page_bytes>{};
  for (auto number = uint64_t{0}; number < 100; ++number)
    bytes.push_back(bytes_of(number, page_size));
  auto writes = std::vector<page_write>{};
  for (auto number = uint64_t{0}; number < 100; ++number)
    writes.push_back({key_of(number), {}, {bytes[number]}});
  writes.push_back(writes.front());
  for (const auto& outcome : store.set(writes, no_deadline))
    EXPECT_TRUE(outcome);
  auto back = std::vector<page_bytes>(100, page_bytes(page_size));
  auto reads = std::vector<page_read>{};
  for (auto number = uint64_t{100}; number-- > 0;)
    reads.push_back({key_of(number), {back[number]}});
  for (const auto& outcome : store.get(reads, no_deadline))
    EXPECT_TRUE(outcome);
  EXPECT_EQ(back, bytes);
}

/// Several times as many pages as there is room for, some of which are used all the time.
TEST_F(DiskBackendTest, CleanedSegmentsLoseNothingThatIsUsed) {
  const auto options = options_for(60 * page_space, segment_bytes);
  auto& store = open(options);
  // One in four of the first is used, so that no segment has only those.
  constexpr auto used_below = uint64_t{80};
  constexpr auto pages = uint64_t{400};
  const auto expect_used = [&](blocking_store& in, uint64_t end) {
    for (auto each = uint64_t{0}; each < std::min(end, used_below); each += 4)
      expect_page(in, each);
  };
  for (auto number = uint64_t{0}; number < pages; ++number) {
    ASSERT_TRUE(put_page(store, number));
    expect_used(store, number + 1);
  }
  EXPECT_EQ(store.health().objects, 60u);
  EXPECT_LE(image_.segments().size(), options.segments);
  const auto user_bytes = pages * (page_space + disk_block_bytes);
  EXPECT_GT(image_.written_bytes(), user_bytes + 10 * page_space) << "nothing was moved";
  EXPECT_LT(image_.written_bytes(), 2 * user_bytes);
  auto& again = open(options);
  expect_used(again, pages);
}

TEST_F(DiskBackendTest, ARemovedObjectDoesNotComeBackWhateverIsCleaned) {
  const auto options = options_for(60 * page_space, segment_bytes);
  for (auto number = uint64_t{1}; number <= 40; ++number)
    ASSERT_TRUE(put_page(number == 1 ? open(options) : *store_, number));
  for (auto number = uint64_t{2}; number <= 40; number += 2)
    ASSERT_TRUE(drop(*store_, key_of(number)));
  for (auto round = uint64_t{0}; round < 10; ++round) {
    auto& again = open(options);
    for (auto number = uint64_t{2}; number <= 40; number += 2)
      ASSERT_FALSE(has(again, key_of(number))) << number << " in round " << round;
    // Which cleans some segments: those with removals, and those with what was removed.
    for (auto number = uint64_t{1}; number <= 39; number += 2)
      expect_page(again, number);
    for (auto number = uint64_t{0}; number < 15; ++number)
      ASSERT_TRUE(put_page(again, 1000 + round * 100 + number));
  }
}

TEST_F(DiskBackendTest, DamagedObjectsAreGone) {
  for (const auto number : {1u, 2u})
    ASSERT_TRUE(put_page(number == 1 ? open(large_) : *store_, number));
  // The first record lies at the start of the segment that was opened first.
  for (const auto segment : image_.segments())
    image_.bytes_of(segment)[2 * disk_block_bytes] ^= std::byte{1};
  EXPECT_EQ(code_of(take(*store_, key_of(1), page_size)), ec::corrupt_page);
  EXPECT_EQ(code_of(take(*store_, key_of(1), page_size)), ec::not_found);
  expect_page(*store_, 2);
  auto& again = open(large_);
  EXPECT_FALSE(has(again, key_of(1)));
  expect_page(again, 2);
}

TEST_F(DiskBackendTest, ADiskThatCannotBeReadFailsAndRemovesNothing) {
  auto& store = open(large_);
  ASSERT_TRUE(put_page(store, 1));
  image_.set_read_error(EIO);
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::io_failure);
  image_.set_read_error(0);
  expect_page(store, 1);
}

TEST_F(DiskBackendTest, WhatWasNotSyncedWasNotStored) {
  auto& store = open(large_);
  ASSERT_TRUE(put_page(store, 1));
  image_.set_sync_error(EIO);
  EXPECT_EQ(code_of(put_page(store, 2)), ec::io_failure);
  EXPECT_FALSE(has(store, key_of(2)));
  image_.set_sync_error(0);
  ASSERT_TRUE(put_page(store, 2));
  for (const auto number : {1u, 2u})
    expect_page(store, number);
}

TEST_F(DiskBackendTest, AFullDiskMakesTheStoreSmaller) {
  image_.set_room(5);
  auto& store = open(large_);
  for (auto number = uint64_t{0}; number < 200; ++number)
    ASSERT_TRUE(put_page(store, number)) << number;
  EXPECT_EQ(image_.segments().size(), 5u);
  EXPECT_LT(store.health().capacity_bytes, 5 * segment_bytes);
  expect_page(store, 199);
}

TEST_F(DiskBackendTest, CountsAndTellsAllThatItDropsOnADiskThatIsFull) {
  const auto options = options_for(60 * page_space, segment_bytes);
  auto& store = open(options);
  auto told = std::set<page_key>{};
  ASSERT_TRUE(store.watch_evictions(
    [&](std::span<const evicted_object> objects) {
      for (const auto& x : objects)
        EXPECT_TRUE(told.insert(x.key).second);
    },
    false));
  auto stored = std::set<page_key>{};
  for (auto number = uint64_t{0}; number < 400; ++number) {
    // Cleaning has no room at times, too.
    image_.set_write_error(number % 7 == 0 ? ENOSPC : 0);
    if (put_page(store, number))
      stored.insert(key_of(number));
    for (auto used = uint64_t{1}; used < number; used += 4)
      static_cast<void>(take(store, key_of(used), page_size));
  }
  std::erase_if(stored, [&](const page_key& key) { return has(store, key); });
  EXPECT_EQ(told, stored);
  EXPECT_EQ(store.health().counters.evicted, stored.size());
}

TEST_F(DiskBackendTest, ADiskThatCannotBeWrittenIsRead) {
  ASSERT_TRUE(put_page(open(large_), 1));
  image_.set_write_error(EROFS);
  auto& again = open(large_);
  const auto refused = put_page(again, 2);
  EXPECT_EQ(code_of(refused), ec::io_failure);
  EXPECT_EQ(refused.error().detail, "cannot write to disk: Read-only file system");
  expect_page(again, 1);
}

TEST_F(DiskBackendTest, ASlowDiskStoresWhatItCanInTime) {
  auto& store = open(large_);
  image_.set_watch([this] { clock_.advance(std::chrono::seconds{1}); });
  auto bytes = std::vector<page_bytes>{};
  for (auto number = uint64_t{0}; number < 100; ++number)
    bytes.push_back(bytes_of(number, page_size));
  auto writes = std::vector<page_write>{};
  for (auto number = uint64_t{0}; number < 100; ++number)
    writes.push_back({key_of(number), {}, {bytes[number]}});
  const auto outcomes = store.set(writes, clock_.now() + std::chrono::seconds{3});
  image_.set_watch({});
  EXPECT_TRUE(outcomes.front());
  EXPECT_EQ(code_of(outcomes.back()), ec::deadline_exceeded);
  for (auto number = uint64_t{0}; number < 100; ++number) {
    EXPECT_EQ(has(store, key_of(number)), outcomes[number].has_value()) << number;
    if (outcomes[number])
      expect_page(store, number);
  }
}

TEST_F(DiskBackendTest, ATransferThatHangsHoldsUpNoLookUp) {
  auto& store = open(large_);
  ASSERT_TRUE(put_page(store, 1));
  auto begun = std::promise<void>{};
  auto end = std::promise<void>{};
  image_.set_watch([&, ended = end.get_future().share(), is_first = true]() mutable {
    if (std::exchange(is_first, false))
      begun.set_value();
    ended.wait();
  });
  auto read = std::async(std::launch::async, [&] { return take(store, key_of(1), page_size); });
  begun.get_future().wait();
  EXPECT_TRUE(has(store, key_of(1)));
  EXPECT_FALSE(has(store, key_of(2)));
  EXPECT_EQ(store.health().objects, 1u);
  end.set_value();
  EXPECT_EQ(read.get().value(), bytes_of(1, page_size));
}

TEST_F(DiskBackendTest, ADiskWithoutRoomForAFewSegmentsStoresNothing) {
  image_.set_room(2);
  auto& store = open(large_);
  auto refused = result<void>{};
  for (auto number = uint64_t{0}; number < 200 && refused; ++number)
    refused = put_page(store, number);
  EXPECT_EQ(code_of(refused), ec::store_full);
}

TEST_F(DiskBackendTest, AFailedWriteCostsNothingElse) {
  auto& store = open(large_);
  ASSERT_TRUE(put_page(store, 1));
  image_.fail_after(1);
  EXPECT_EQ(code_of(put_page(store, 2)), ec::io_failure);
  image_.fail_after(UINT64_MAX);
  ASSERT_TRUE(put_page(store, 3));
  auto& again = open(large_);
  for (const auto number : {1u, 3u})
    expect_page(again, number);
  EXPECT_FALSE(has(again, key_of(2)));
}

/// The header is written, the object is not, and the header cannot be cleared.
TEST_F(DiskBackendTest, AHeaderWithoutItsObjectDoesNotBringItBack) {
  auto& store = open(large_);
  ASSERT_TRUE(put_page(store, 1));
  image_.refuse_writes({true, false, true});
  EXPECT_EQ(code_of(put_page(store, 2)), ec::io_failure);
  // Later headers say that all before them is on the disk.
  for (const auto number : {3u, 4u, 5u})
    ASSERT_TRUE(put_page(store, number));
  auto& again = open(large_);
  EXPECT_FALSE(has(again, key_of(2)));
  for (const auto number : {1u, 3u, 4u, 5u})
    expect_page(again, number);
}

TEST_F(DiskBackendTest, TellsWhenWhatItEvictsWasUsedByThisProcess) {
  const auto options = options_for(30 * page_space, segment_bytes);
  clock_.advance(std::chrono::hours{1});
  for (const auto number : {0u, 1u})
    ASSERT_TRUE(put_page(open(options), number));
  auto& store = open(options);
  auto used = std::map<page_key, time_point>{};
  ASSERT_TRUE(store.watch_evictions(
    [&](std::span<const evicted_object> objects) {
      for (const auto& x : objects)
        used.emplace(x.key, x.used);
    },
    false));
  clock_.advance(std::chrono::hours{1});
  expect_page(store, 1);
  const auto read_at = clock_.now();
  for (auto number = uint64_t{2}; number < 33; ++number) {
    clock_.advance(std::chrono::hours{1});
    ASSERT_TRUE(put_page(store, number));
  }
  ASSERT_EQ(used.size(), 3u);
  EXPECT_LT(used.at(key_of(0)), time_point{std::chrono::seconds{1}}) << "an earlier process";
  EXPECT_EQ(std::chrono::floor<std::chrono::seconds>(used.at(key_of(1))), read_at);
  EXPECT_GT(used.at(key_of(2)), read_at + std::chrono::minutes{59});
}

TEST_F(DiskBackendTest, TellsWhatItEvicts) {
  auto& store = open(options_for(30 * page_space, segment_bytes));
  auto told = std::map<page_key, page_bytes>{};
  auto parents = std::map<page_key, page_key>{};
  ASSERT_TRUE(store.watch_evictions(
    [&](std::span<const evicted_object> objects) {
      for (const auto& x : objects) {
        told.emplace(x.key, page_bytes{x.bytes.begin(), x.bytes.end()});
        parents.emplace(x.key, x.parent);
      }
    },
    true));
  constexpr auto count = uint64_t{100};
  for (auto number = uint64_t{0}; number < count; ++number) {
    const auto bytes = bytes_of(number, page_size - number);
    ASSERT_TRUE(
      store
        .set(std::vector{page_write{key_of(number), key_of(number + 1000), {bytes}}}, no_deadline)
        .at(0));
  }
  EXPECT_EQ(told.size(), store.health().counters.evicted);
  EXPECT_GT(told.size(), 50u);
  for (auto number = uint64_t{0}; number < count; ++number) {
    const auto evicted = told.find(key_of(number));
    EXPECT_NE(evicted != told.end(), has(store, key_of(number))) << number;
    if (evicted != told.end()) {
      EXPECT_EQ(evicted->second, bytes_of(number, page_size - number));
      EXPECT_EQ(parents[key_of(number)], key_of(number + 1000));
    }
  }
}

/// Also of objects that were moved, and after a restart.
TEST_F(DiskBackendTest, TellsTheTenantsOfWhatItEvicts) {
  const auto options = options_for(60 * page_space, segment_bytes);
  const auto put_of_tenant = [](blocking_store& in, uint64_t number) {
    const auto bytes = bytes_of(number, page_size);
    const auto page = page_write{key_of(number), {}, {bytes}, number + 7};
    ASSERT_TRUE(in.set(std::vector{page}, no_deadline).at(0));
  };
  auto& store = open(options);
  for (auto number = uint64_t{0}; number < 400; ++number) {
    put_of_tenant(store, number);
    expect_page(store, 0);
  }
  auto& again = open(options);
  for (const auto wants_bytes : {false, true}) {
    auto tenants = std::map<page_key, uint64_t>{};
    ASSERT_TRUE(again.watch_evictions(
      [&](std::span<const evicted_object> objects) {
        for (const auto& x : objects)
          tenants.emplace(x.key, x.tenant);
      },
      wants_bytes));
    const auto first = uint64_t{wants_bytes ? 500u : 400u};
    for (auto number = first; number < first + 100; ++number)
      put_of_tenant(again, number);
    EXPECT_EQ(tenants.contains(key_of(0)), !wants_bytes);
    EXPECT_EQ(tenants.size(), 100u);
    for (auto number = uint64_t{0}; number < first + 100; ++number)
      if (const auto told = tenants.find(key_of(number)); told != tenants.end()) {
        EXPECT_EQ(told->second, number + 7);
      }
  }
}

TEST_F(DiskBackendTest, AnEmptyWatchEndsTheLastOne) {
  auto& store = open(options_for(30 * page_space, segment_bytes));
  auto told = size_t{0};
  ASSERT_TRUE(store.watch_evictions(
    [&](auto objects) {
      for (const auto& x : objects)
        told += x.bytes.empty() ? 1 : 0;
    },
    false));
  for (auto number = uint64_t{0}; number < 100; ++number)
    ASSERT_TRUE(put_page(store, number));
  const auto before = store.health().counters.evicted;
  EXPECT_EQ(told, before);
  ASSERT_TRUE(store.watch_evictions({}, false));
  for (auto number = uint64_t{100}; number < 200; ++number)
    ASSERT_TRUE(put_page(store, number));
  EXPECT_GT(store.health().counters.evicted, before);
  EXPECT_EQ(told, before);
}

/// Also of objects that were moved, and after a restart.
TEST_F(DiskBackendTest, ListsTheNamespacesOfItsObjects) {
  auto options = options_for(60 * page_space, segment_bytes);
  options.fingerprint = 7;
  auto& store = open(options);
  const auto fingerprints = [](blocking_store& in) {
    auto listed = std::map<page_key, uint64_t>{};
    auto from = std::string{};
    do {
      const auto part = in.list(from, no_deadline).value();
      for (const auto& x : part.objects)
        listed.emplace(x.key, x.fingerprint);
      from = part.next;
    } while (!from.empty());
    return listed;
  };
  const auto bytes = bytes_of(1, page_size);
  ASSERT_TRUE(store.set(std::vector{page_write{key_of(1), {}, {bytes}, 0, 9}}, no_deadline).at(0));
  for (auto number = uint64_t{2}; number < 400; ++number) {
    ASSERT_TRUE(put_page(store, number));
    expect_page(store, 1);
  }
  for (const auto is_opened_again : {false, true}) {
    auto listed = fingerprints(is_opened_again ? open(options) : store);
    EXPECT_EQ(listed.at(key_of(1)), 9u);
    listed.erase(key_of(1));
    EXPECT_GT(listed.size(), 50u);
    for (const auto& [key, fingerprint] : listed)
      EXPECT_EQ(fingerprint, 7u);
  }
}

TEST_F(DiskBackendTest, AStoreOfAnotherVersionBeginsEmpty) {
  ASSERT_TRUE(put_page(open(large_), 1));
  store_.reset();
  for (const auto segment : image_.segments())
    image_.bytes_of(segment)[4] = std::byte{1}; // The version in the first header.
  auto& again = open(large_);
  EXPECT_EQ(again.health().objects, 0u);
  ASSERT_TRUE(put_page(again, 2));
  expect_page(open(large_), 2);
}

/// Of version 2, in which the header of so many objects takes a block less.
TEST_F(DiskBackendTest, ALogWithoutTenantsIsReadAndGoesOn) {
  auto record = disk_record{1, 1, 0, {}, {}, 2};
  for (auto number = uint64_t{0}; number < 37; ++number)
    record.objects.push_back({key_of(100 + number), {}, 0, running_checksum{}.value(), 7});
  const auto bytes = bytes_of(1, page_size);
  auto sum = running_checksum{};
  sum.add(bytes);
  record.objects.push_back({key_of(1), {}, page_size, sum.value(), 7});
  const auto header = header_of_version_2(record);
  ASSERT_LT(header.size(), disk_header_bytes(record.objects.size(), 0));
  ASSERT_TRUE(image_.create(0));
  std::ranges::copy(header, image_.bytes_of(0).begin());
  std::memcpy(&image_.bytes_of(0)[header.size()], bytes.data(), bytes.size());
  auto& store = open(large_);
  EXPECT_EQ(store.health().objects, 38u);
  expect_page(store, 1);
  ASSERT_TRUE(put_page(store, 2));
  auto& again = open(large_);
  for (const auto number : {1u, 2u})
    expect_page(again, number);
}

TEST_F(DiskBackendTest, ASmallerStoreDropsSegments) {
  for (auto number = uint64_t{0}; number < 150; ++number)
    ASSERT_TRUE(put_page(number == 0 ? open(large_) : *store_, number));
  const auto small = options_for(30 * page_space, segment_bytes);
  auto& again = open(small);
  EXPECT_LE(image_.segments().size(), small.segments);
  ASSERT_TRUE(put_page(again, 500));
  EXPECT_LE(again.health().bytes, small.live_bytes);
  expect_page(again, 500);
}

TEST(DiskFiles, AFolderIsForOneProcess) {
  const auto folder = temporary_folder{};
  const auto clock = manual_clock{};
  const auto first = make_disk_backend(folder.path(), uint64_t{16} << 20, 0, clock);
  ASSERT_TRUE(first) << first.error().detail;
  const auto second = make_disk_backend(folder.path(), uint64_t{16} << 20, 0, clock);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().detail, "another process uses the folder " + folder.path());
  EXPECT_EQ(code_of(make_disk_backend(folder.path(), 1 << 20, 0, clock)), ec::invalid_argument);
  EXPECT_EQ(code_of(make_disk_backend("/proc/none", uint64_t{16} << 20, 0, clock)), ec::io_failure);
}

TEST(DiskFiles, WhatIsInFilesSurvivesAndStrangeFilesStay) {
  const auto folder = temporary_folder{};
  const auto clock = manual_clock{};
  const auto open
    = [&] { return make_disk_backend(folder.path(), uint64_t{32} << 20, 0, clock).value(); };
  constexpr auto size = size_t{3} << 19;
  for (const auto number : {1u, 2u})
    ASSERT_TRUE(put(*open(), key_of(number), bytes_of(number, size)));
  const auto stray = std::filesystem::path{folder.path()} / "segment-1.txt";
  std::ofstream{stray} << "not ours";
  const auto store = open();
  for (const auto number : {1u, 2u})
    EXPECT_EQ(take(*store, key_of(number), size).value(), bytes_of(number, size));
  EXPECT_TRUE(std::filesystem::exists(stray));
}

} // namespace
} // namespace hicache::test
