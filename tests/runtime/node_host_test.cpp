// A node as a process runs it, and clients in processes of their own as far as actors can tell.

#include "tests/runtime/cluster_support.hpp"
#include "tests/runtime/node_processes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

/// An engine on the node's machine.
struct engine : engine_process {
  explicit engine(const std::string& socket, client_info who = {1, 7})
    : engine_process("unix:" + socket, who) {}
};

class NodeHostTest : public ::testing::Test {
protected:
  void SetUp() override {
    auto folder = ::testing::TempDir() + "hicache-node-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    socket_ = folder + "/socket";
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<node_process> start(size_t pages, const std::string& index = {}) {
    auto options = node_host_options{};
    options.memory_bytes = pages * slot_bytes_for(page_size);
    options.socket = socket_;
    options.index = index;
    return std::make_unique<node_process>(std::move(options));
  }

  /// Its memory is a file.
  std::unique_ptr<node_process> start_with_file(size_t pages, const std::string& index = {}) {
    auto options = node_host_options{};
    options.memory_bytes = pages * slot_bytes_for(page_size) + memory_label_bytes;
    options.memory_file = folder_ + "/memory";
    options.socket = socket_;
    options.index = index;
    return std::make_unique<node_process>(std::move(options));
  }

  std::unique_ptr<node_process> start_with_disk(size_t pages, const std::string& index) {
    auto options = node_host_options{};
    options.memory_bytes = pages * slot_bytes_for(page_size);
    options.disk = folder_ + "/disk";
    options.disk_bytes = uint64_t{16} << 20;
    options.socket = socket_;
    options.index = index;
    return std::make_unique<node_process>(std::move(options));
  }

  std::string folder_;
  std::string socket_;
};

/// Waits until the node has looked at all of its memory file.
node_status when_scanned(engine& one) {
  for (;;) {
    const auto status = one.client.status({}, soon());
    EXPECT_TRUE(status) << to_string(status.error());
    if (!status || status->unscanned_bytes == 0)
      return status.value_or(node_status{});
    std::this_thread::yield();
  }
}

ec code_of(const auto& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

TEST_F(NodeHostTest, WhatOneEngineStoresAnotherOneReads) {
  const auto node = start(16);
  auto writer = engine{socket_};
  ASSERT_TRUE(writer.put(1));
  auto reader = engine{socket_};
  EXPECT_EQ(reader.get(1), bytes_of(1, page_size));
  EXPECT_EQ(code_of(reader.get(2)), ec::not_found);
  EXPECT_TRUE(reader.put(1)) << "it is there already";
  const auto status = reader.client.status({}, soon());
  ASSERT_TRUE(status);
  EXPECT_EQ(status->client_count, 2u);
  EXPECT_EQ(status->pages_written, 1u);
}

TEST_F(NodeHostTest, PagesAreReadInPlaceUntilTheViewEnds) {
  const auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  const auto keys = std::vector{key_of(1), key_of(2)};
  {
    const auto view = one.client.view(keys, false, soon());
    ASSERT_TRUE(view);
    ASSERT_EQ(view->pages().size(), 2u);
    EXPECT_TRUE(std::ranges::equal(view->pages()[0], bytes_of(1, page_size)));
    EXPECT_TRUE(view->pages()[1].empty());
    EXPECT_EQ(one.client.status({}, soon())->leases, 1u);
  }
  EXPECT_EQ(one.client.status({}, soon())->leases, 0u);
}

TEST_F(NodeHostTest, APageThatIsLeasedUnreadIsVerifiedAsItIsCopied) {
  const auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  ASSERT_TRUE(one.put(2));
  const auto keys = std::array{key_of(1), key_of(2), key_of(3)};
  const auto view = one.client.view(keys, false, soon(), page_check::header);
  ASSERT_TRUE(view);
  const_cast<std::byte&>(view->pages()[1][7]) ^= std::byte{1};
  auto bytes = page_bytes(page_size);
  const auto parts = cut(bytes, {100, 1000});
  EXPECT_TRUE(view->copy(0, parts));
  EXPECT_EQ(bytes, bytes_of(1, page_size));
  EXPECT_EQ(code_of(view->copy(1, parts)), ec::corrupt_page);
  EXPECT_EQ(code_of(view->copy(2, parts)), ec::not_found);
  EXPECT_EQ(code_of(view->copy(0, std::span{parts}.first(2))), ec::invalid_argument);
}

TEST_F(NodeHostTest, AViewOutlivesTheNode) {
  auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  const auto view = one.client.view(std::array{key_of(1)}, false, soon());
  ASSERT_TRUE(view);
  node.reset();
  EXPECT_TRUE(std::ranges::equal(view->pages()[0], bytes_of(1, page_size)));
}

TEST_F(NodeHostTest, PagesOfAnotherLengthAreNotRead) {
  const auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  auto bytes = page_bytes(page_size + 1);
  const auto answer = one.client.get(std::vector{page_read{key_of(1), {bytes}}}, soon());
  EXPECT_EQ(code_of(answer.at(0)), ec::invalid_argument);
}

TEST_F(NodeHostTest, ADamagedPageIsAMissAndCanBeStoredAgain) {
  const auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  {
    const auto view = one.client.view(std::array{key_of(1)}, false, soon());
    ASSERT_TRUE(view);
    // Somebody of the same user wrote where it should not.
    const_cast<std::byte&>(view->pages()[0][7]) ^= std::byte{1};
  }
  auto other = engine{socket_};
  EXPECT_EQ(code_of(other.get(1)), ec::corrupt_page);
  while (code_of(other.get(1)) == ec::corrupt_page)
    std::this_thread::yield();
  EXPECT_EQ(code_of(other.get(1)), ec::not_found);
  ASSERT_TRUE(one.put(1));
  EXPECT_EQ(other.get(1), bytes_of(1, page_size));
}

TEST_F(NodeHostTest, EnginesOfOtherNamespacesDoNotMix) {
  const auto node = start(16);
  auto one = engine{socket_, {1, 7}};
  auto other = engine{socket_, {1, 8}};
  ASSERT_TRUE(one.put(1));
  EXPECT_EQ(code_of(other.get(1)), ec::not_found);
}

TEST_F(NodeHostTest, ARemovedPageIsAMissButForViewsOfIt) {
  const auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  const auto keys = std::array{key_of(1), key_of(2)};
  const auto view = one.client.view(keys, false, soon(), page_check::header);
  ASSERT_TRUE(view);
  EXPECT_EQ(code_of(one.client.remove(keys, soon()).at(0)), ec::none);
  EXPECT_EQ(code_of(one.get(1)), ec::not_found);
  auto bytes = page_bytes(page_size);
  EXPECT_TRUE(view->copy(0, std::array{std::span{bytes}}));
  EXPECT_EQ(bytes, bytes_of(1, page_size));
}

TEST_F(NodeHostTest, AnEngineThatEndsLeavesItsPages) {
  const auto node = start(16);
  ASSERT_TRUE(std::make_unique<engine>(socket_)->put(1));
  auto next = engine{socket_};
  EXPECT_EQ(next.get(1), bytes_of(1, page_size));
}

TEST_F(NodeHostTest, AnEngineOutlivesARestartOfTheNode) {
  auto node = start(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  node.reset();
  EXPECT_FALSE(std::filesystem::exists(socket_));
  EXPECT_FALSE(one.get(1));
  EXPECT_FALSE(one.put(2));
  node = start(16);
  const auto end = soon();
  while (!one.client.connect(soon()))
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(code_of(one.get(1)), ec::not_found) << "its memory was the old process's";
  EXPECT_TRUE(one.put(1));
  EXPECT_EQ(one.get(1), bytes_of(1, page_size));
}

TEST_F(NodeHostTest, ANodeWithAMemoryFileHasThePagesOfTheOneBefore) {
  auto node = start_with_file(16);
  auto one = std::make_unique<engine>(socket_);
  for (const auto number : {1, 2, 3})
    ASSERT_TRUE(one->put(number));
  one->client.remove(std::array{key_of(2)}, soon());
  one.reset();
  node.reset();
  node = start_with_file(16);
  auto other = engine{socket_};
  const auto status = when_scanned(other);
  EXPECT_EQ(status.pages_kept, 2u);
  EXPECT_EQ(status.pages_dropped, 0u);
  EXPECT_EQ(other.get(1), bytes_of(1, page_size));
  EXPECT_EQ(code_of(other.get(2)), ec::not_found);
  EXPECT_EQ(other.get(3), bytes_of(3, page_size));
  EXPECT_TRUE(other.put(4));
  EXPECT_EQ(other.get(4), bytes_of(4, page_size));
}

TEST_F(NodeHostTest, AnEngineThatStaysFindsItsPagesInTheMemoryFile) {
  auto node = start_with_file(16);
  auto one = engine{socket_};
  ASSERT_TRUE(one.put(1));
  const auto view = one.client.view(std::array{key_of(1)}, false, soon());
  ASSERT_TRUE(view);
  node.reset();
  EXPECT_FALSE(one.get(1));
  node = start_with_file(16);
  const auto end = soon();
  while (!one.client.connect(soon()))
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  when_scanned(one);
  EXPECT_EQ(one.get(1), bytes_of(1, page_size));
  for (auto number = uint64_t{2}; number < 40; ++number)
    ASSERT_TRUE(one.put(number));
  EXPECT_TRUE(std::ranges::equal(view->pages()[0], bytes_of(1, page_size)))
    << "the view is of the last node, and good for some minutes";
}

TEST_F(NodeHostTest, AMemberWithAMemoryFileOffersItsPagesToTheClusterAgain) {
  auto index = local_index{};
  {
    const auto node = start_with_file(16, index.address());
    auto one = engine{socket_};
    ASSERT_TRUE(one.put(1));
  }
  const auto node = start_with_file(16, index.address());
  auto one = engine{socket_};
  when_scanned(one);
  auto options = cluster_member_options{};
  options.segment_bytes = 16 * slot_bytes_for(page_size);
  options.object_bytes = page_size;
  options.fingerprint = 7;
  options.host = "elsewhere";
  auto other = local_member{index, std::move(options)};
  const auto store = (*other).open();
  auto bytes = page_bytes(page_size);
  ASSERT_TRUE(store->get(std::vector{page_read{key_of(1), {bytes}}}, soon()).at(0));
  EXPECT_EQ(bytes, bytes_of(1, page_size));
}

TEST_F(NodeHostTest, ASecondNodeWithTheSameMemoryFileIsRefused) {
  const auto node = start_with_file(16);
  auto options = node_host_options{};
  options.memory_bytes = 16 * slot_bytes_for(page_size) + memory_label_bytes;
  options.memory_file = folder_ + "/memory";
  options.socket = folder_ + "/other";
  const auto clock = monotonic_clock{};
  options.clock = &clock;
  const auto second = node_host::start(node->system, options);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().detail.find("--memory-file: another node"), std::string::npos);
}

TEST_F(NodeHostTest, WithoutANodeEverythingIsAMiss) {
  auto one = engine{socket_};
  EXPECT_EQ(code_of(one.get(1)), ec::peer_unreachable);
  EXPECT_EQ(code_of(one.put(1)), ec::peer_unreachable);
}

TEST_F(NodeHostTest, ASecondNodeAtTheSamePathIsRefused) {
  const auto node = start(16);
  auto options = node_host_options{};
  options.memory_bytes = slot_bytes_for(page_size);
  options.socket = socket_;
  const auto clock = monotonic_clock{};
  options.clock = &clock;
  const auto second = node_host::start(node->system, options);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().detail.find("--socket"), std::string::npos);
  auto one = engine{socket_};
  EXPECT_TRUE(one.put(1)) << "the first one still serves";
}

TEST_F(NodeHostTest, ManyEnginesWriteAndReadAtOnce) {
  const auto node = start(256);
  auto threads = std::vector<std::thread>{};
  auto failures = std::atomic<int>{0};
  for (auto number = uint64_t{0}; number < 4; ++number)
    threads.emplace_back([&, number] {
      auto one = engine{socket_};
      for (auto i = uint64_t{0}; i < 20; ++i) {
        // Half of the keys are those of the others, too.
        const auto key = i % 2 == 0 ? i : 1000 * number + i;
        if (!one.put(key))
          ++failures;
        if (const auto bytes = one.get(key); bytes && *bytes != bytes_of(key, page_size))
          ++failures;
      }
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(NodeHostTest, PagesOfOtherMembersAreBroughtHere) {
  auto index = local_index{};
  auto options = cluster_member_options{};
  options.segment_bytes = 16 * slot_bytes_for(page_size);
  options.object_bytes = page_size;
  options.fingerprint = 7;
  options.host = "elsewhere";
  auto other = local_member{index, std::move(options)};
  const auto bytes = bytes_of(1, page_size);
  const auto store = (*other).open();
  ASSERT_TRUE(store->set(std::vector{page_write{key_of(1), {}, {bytes}}}, soon()).at(0));
  const auto node = start(16, index.address());
  auto one = engine{socket_};
  const auto keys = std::array{key_of(1), key_of(2)};
  EXPECT_EQ(one.client.exists(keys, soon()), (std::vector{false, false}));
  EXPECT_EQ(one.client.prefetch(keys, false, soon()), (std::vector{true, false}));
  EXPECT_EQ(one.client.exists(keys, soon()), (std::vector{true, false}));
  EXPECT_EQ(one.get(1, page_size, std::chrono::steady_clock::now()), bytes) << "without a wait";
}

/// Waits until the node has written so many pages to its disk.
void when_written(engine& one, uint64_t pages) {
  for (;;) {
    const auto status = one.client.status({}, soon());
    ASSERT_TRUE(status) << to_string(status.error());
    if (status->disk_pages_written >= pages)
      return;
    std::this_thread::yield();
  }
}

/// A process that reads pages of other members and has no memory for them.
std::unique_ptr<local_member> reader_of(const local_index& index, read_path path) {
  auto options = cluster_member_options{};
  options.object_bytes = page_size;
  options.fingerprint = 7;
  options.host = "elsewhere";
  options.path = path;
  return std::make_unique<local_member>(index, std::move(options));
}

/// How many of the pages 1 to `count` a process reads at once, and whether each is as it was
/// stored.
size_t read_all(local_member& process, size_t count) {
  const auto store = (*process).open();
  auto bytes = std::vector<page_bytes>(count, page_bytes(page_size));
  auto keys = std::vector<page_key>{};
  auto reads = std::vector<page_read>{};
  for (auto i = size_t{0}; i < count; ++i) {
    keys.push_back(key_of(i + 1));
    reads.push_back({keys.back(), {bytes[i]}});
  }
  const auto exist = store->exists(keys, soon());
  const auto outcome = store->get(reads, soon());
  auto found = size_t{0};
  for (auto i = size_t{0}; i < count; ++i) {
    EXPECT_EQ(exist[i], outcome[i].has_value()) << i + 1;
    if (!outcome[i])
      continue;
    ++found;
    EXPECT_EQ(bytes[i], bytes_of(i + 1, page_size)) << i + 1;
  }
  return found;
}

TEST_F(NodeHostTest, OthersReadWhatItHasOnDiskOnlyThoughItsMemoryIsSmall) {
  auto index = local_index{};
  const auto node = start_with_disk(16, index.address());
  auto one = engine{socket_};
  for (auto number = uint64_t{1}; number <= 64; ++number) {
    ASSERT_TRUE(one.put(number));
    // What memory evicts before it is written is gone.
    if (number % 8 == 0)
      when_written(one, number);
  }
  EXPECT_EQ(read_all(*reader_of(index, read_path::automatic), 64), 64u);
  EXPECT_EQ(read_all(*reader_of(index, read_path::remote), 64), 64u);
}

TEST_F(NodeHostTest, OthersReadWhatTheDiskOfANodeBeforeHeld) {
  auto index = local_index{};
  {
    const auto node = start_with_disk(16, index.address());
    auto one = engine{socket_};
    for (auto number = uint64_t{1}; number <= 8; ++number)
      ASSERT_TRUE(one.put(number));
  }
  const auto node = start_with_disk(16, index.address());
  auto reader = reader_of(index, read_path::automatic);
  const auto store = (**reader).open();
  const auto end = soon();
  while (!store->exists(std::vector{key_of(8)}, soon()).at(0)
         && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(read_all(*reader, 8), 8u);
}

} // namespace
} // namespace hicache::test
