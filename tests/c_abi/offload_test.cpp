// The calls of hicache.h for engines that keep their blocks, with a node in a process of its own.

#include "tests/c_abi/c_abi_support.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>

namespace hicache::test {
namespace {

constexpr auto block_count = uint32_t{16};
constexpr auto per_page = uint32_t{4};

using block_list = std::array<uint32_t, per_page>;

/// Memory of an engine: two tensors for each of three layers, with room behind the blocks of some.
class engine_blocks {
public:
  struct shape {
    uint64_t layer;
    uint64_t bytes;
    uint64_t stride;
  };

  static constexpr auto shapes
    = std::array{shape{0, 512, 512}, shape{0, 512, 512}, shape{1, 1000, 1024},
                 shape{1, 8, 64},    shape{2, 512, 512}, shape{2, 3, 3}};
  static constexpr auto layers = uint32_t{3};

  /// @param seed Blocks of different seeds have nothing in common.
  explicit engine_blocks(uint64_t seed) {
    for (const auto& [layer, bytes, stride] : shapes) {
      memory_.push_back(bytes_of(seed++, block_count * stride));
      tensors_.push_back({memory_.back().data(), block_count, stride, bytes, layer, {}});
    }
  }

  hc_layout layout() const {
    return {sizeof(hc_layout), HC_HOST, per_page, tensors_.data(), tensors_.size()};
  }

  std::vector<hc_tensor>& tensors() { return tensors_; }

  std::vector<page_bytes>& memory() { return memory_; }

  /// What a page of these blocks has to be.
  page_bytes page(const block_list& blocks) const {
    auto page = page_bytes{};
    for (auto t = size_t{0}; t < shapes.size(); ++t)
      for (const auto block : blocks) {
        const auto from = memory_[t].begin() + static_cast<ptrdiff_t>(block * shapes[t].stride);
        page.insert(page.end(), from, from + static_cast<ptrdiff_t>(shapes[t].bytes));
      }
    return page;
  }

  /// Overwrites these blocks, of these layers, with those of another engine.
  void take(const engine_blocks& from, const block_list& theirs, const block_list& ours,
            uint64_t end_layer = layers) {
    for (auto t = size_t{0}; t < shapes.size() && shapes[t].layer < end_layer; ++t)
      for (auto i = size_t{0}; i < per_page; ++i)
        if (ours[i] != HC_NO_BLOCK)
          std::memcpy(&memory_[t][ours[i] * shapes[t].stride],
                      &from.memory_[t][theirs[i] * shapes[t].stride], shapes[t].bytes);
  }

  /// The memory of one layer.
  std::vector<page_bytes> layer(uint64_t number) const {
    auto found = std::vector<page_bytes>{};
    for (auto t = size_t{0}; t < shapes.size(); ++t)
      if (shapes[t].layer == number)
        found.push_back(memory_[t]);
    return found;
  }

private:
  std::vector<page_bytes> memory_;
  std::vector<hc_tensor> tensors_;
};

/// A page of a call, and its blocks.
struct named_blocks {
  uint64_t number;
  block_list blocks;
};

class COffloadTest : public ::testing::Test {
protected:
  COffloadTest() {
    auto error = hc_error{};
    const auto layout = mine_.layout();
    EXPECT_EQ(hc_offload_open(client_.get(), &layout, &offload_, &error), HC_OK) << error.text;
  }

  hc_ticket begin_store(const std::vector<named_blocks>& pages, int32_t* codes = nullptr,
                        uint32_t timeout_ms = patience_ms) {
    auto how = call_for(timeout_ms);
    how.codes = codes;
    auto ticket = hc_ticket{0};
    auto error = hc_error{};
    const auto listed = list(pages);
    EXPECT_EQ(
      hc_offload_store(offload_, listed.data(), listed.size(), &how, nullptr, &ticket, &error),
      HC_OK)
      << error.text;
    return ticket;
  }

  hc_ticket begin_load(const std::vector<named_blocks>& pages, int32_t* codes = nullptr,
                       hc_lease* lease = nullptr) {
    auto how = call_for();
    how.codes = codes;
    how.lease = lease;
    auto ticket = hc_ticket{0};
    auto error = hc_error{};
    const auto listed = list(pages);
    EXPECT_EQ(hc_offload_load(offload_, listed.data(), listed.size(), &how, &ticket, &error), HC_OK)
      << error.text;
    return ticket;
  }

  /// @returns the codes
  std::vector<int32_t> store(const std::vector<named_blocks>& pages) {
    auto codes = std::vector<int32_t>(pages.size(), -1);
    done_ = client_.wait(begin_store(pages, codes.data()));
    return codes;
  }

  /// @returns the codes
  std::vector<int32_t> load(const std::vector<named_blocks>& pages, hc_lease* lease = nullptr) {
    auto codes = std::vector<int32_t>(pages.size(), -1);
    done_ = client_.wait(begin_load(pages, codes.data(), lease));
    return codes;
  }

  hc_lease* pin(uint64_t number, uint32_t flags = 0) {
    return client_.keys(hc_pin, keys_of({number}), nullptr, flags).lease;
  }

  /// Changes a byte of a page in the node.
  void damage(uint64_t number) {
    auto* lease = pin(number, HC_IN_PLACE);
    auto page = hc_leased_page{};
    ASSERT_EQ(hc_lease_pages(lease, 0, 1, &page, nullptr), HC_OK);
    auto* last = static_cast<uint8_t*>(const_cast<void*>(page.data)) + page.bytes - 1;
    *last = static_cast<uint8_t>(*last ^ 1);
    EXPECT_EQ(hc_unpin(lease), HC_OK);
  }

  static std::vector<hc_offload_page> list(const std::vector<named_blocks>& pages) {
    auto listed = std::vector<hc_offload_page>{};
    for (const auto& page : pages)
      listed.push_back({key_of(page.number), {}, page.blocks.data(), {}});
    return listed;
  }

  socket_folder folder_;
  node_process node_{folder_.socket()};
  engine_blocks mine_{100};
  c_client client_{configuration(folder_.socket())};
  hc_offload* offload_ = nullptr;
  hc_completion done_{};
};

using codes = std::vector<int32_t>;

TEST_F(COffloadTest, APageIsItsBlocksLayerByLayerTensorByTensor) {
  const auto blocks = block_list{5, 6, 1, 15};
  ASSERT_EQ(hc_offload_page_bytes(offload_), mine_.page(blocks).size());
  ASSERT_EQ(store({{1, blocks}, {2, {0, 1, 2, 3}}}), (codes{HC_OK, HC_OK}));
  EXPECT_EQ(done_.pages, 2u);
  auto bytes = page_bytes(hc_offload_page_bytes(offload_));
  ASSERT_EQ(client_.get(1, bytes), HC_OK);
  EXPECT_EQ(bytes, mine_.page(blocks));
  ASSERT_EQ(client_.get(2, bytes), HC_OK);
  EXPECT_EQ(bytes, mine_.page({0, 1, 2, 3}));
  EXPECT_EQ(client_.counters().bytes_put, 2 * bytes.size());
}

TEST_F(COffloadTest, WhatIsPutAsAPageIsLoadedIntoBlocksAndNothingElseChanges) {
  const auto other = engine_blocks{200};
  ASSERT_EQ(client_.put(1, other.page({1, 2, 3, 4})), HC_OK);
  ASSERT_EQ(client_.put(2, other.page({9, 8, 7, 6})), HC_OK);
  auto expected = mine_;
  expected.take(other, {1, 2, 3, 4}, {4, 5, 6, 12});
  expected.take(other, {9, 8, 7, 6}, {0, 15, 2, 1});
  ASSERT_EQ(load({{1, {4, 5, 6, 12}}, {2, {0, 15, 2, 1}}}), (codes{HC_OK, HC_OK}));
  EXPECT_EQ(mine_.memory(), expected.memory());
  EXPECT_EQ(client_.counters().pages_got, 2u);
  EXPECT_EQ(client_.counters().bytes_got, 2 * hc_offload_page_bytes(offload_));
}

TEST_F(COffloadTest, BlocksThatAreNotWantedAreLeftOut) {
  const auto other = engine_blocks{200};
  ASSERT_EQ(client_.put(1, other.page({1, 2, 3, 4})), HC_OK);
  ASSERT_EQ(client_.put(2, other.page({5, 6, 7, 8})), HC_OK);
  const auto first = block_list{HC_NO_BLOCK, HC_NO_BLOCK, 3, 4};
  const auto last = block_list{9, HC_NO_BLOCK, 10, HC_NO_BLOCK};
  auto expected = mine_;
  expected.take(other, {1, 2, 3, 4}, first);
  expected.take(other, {5, 6, 7, 8}, last);
  ASSERT_EQ(load({{1, first}, {2, last}}), (codes{HC_OK, HC_OK}));
  EXPECT_EQ(mine_.memory(), expected.memory());
}

TEST_F(COffloadTest, WhatExistsIsNotWrittenAgain) {
  ASSERT_EQ(store({{1, {0, 1, 2, 3}}}), codes{HC_OK});
  const auto before = mine_.page({0, 1, 2, 3});
  ASSERT_EQ(store({{1, {4, 5, 6, 7}}}), codes{HC_OK});
  EXPECT_EQ(client_.node().pages_written, 1u);
  auto bytes = page_bytes(before.size());
  ASSERT_EQ(client_.get(1, bytes), HC_OK);
  EXPECT_EQ(bytes, before);
}

TEST_F(COffloadTest, PagesThatAreMissingOrDamagedOrOfAnotherLengthLeaveTheirBlocksAlone) {
  const auto other = engine_blocks{200};
  ASSERT_EQ(client_.put(1, other.page({1, 2, 3, 4})), HC_OK);
  ASSERT_EQ(client_.put(2, other.page({5, 6, 7, 8})), HC_OK);
  ASSERT_EQ(client_.put(4, page_bytes(page_size)), HC_OK);
  damage(2);
  auto expected = mine_;
  expected.take(other, {1, 2, 3, 4}, {0, 1, 2, 3});
  const auto ticket = begin_load({{2, {4, 5, 6, 7}}});
  EXPECT_EQ(hc_offload_wait_layer(offload_, ticket, 0, patience_ms), HC_NOT_FOUND);
  EXPECT_EQ(client_.wait(ticket).error.code, HC_CORRUPT_PAGE);
  EXPECT_EQ(client_.counters().pages_corrupt, 1u);
  // By now the node has withdrawn it.
  ASSERT_EQ(
    load({{1, {0, 1, 2, 3}}, {2, {4, 5, 6, 7}}, {3, {8, 9, 10, 11}}, {4, {12, 13, 14, 15}}}),
    (codes{HC_OK, HC_NOT_FOUND, HC_NOT_FOUND, HC_INVALID_ARGUMENT}));
  EXPECT_NE(std::string_view{done_.error.text}.find("4096 bytes"), std::string_view::npos);
  EXPECT_EQ(done_.pages, 1u);
  EXPECT_EQ(mine_.memory(), expected.memory());
}

TEST_F(COffloadTest, PagesOfALeaseAreVerifiedEachTime) {
  ASSERT_EQ(store({{1, {0, 1, 2, 3}}}), codes{HC_OK});
  auto* header = pin(1);
  auto* whole = pin(1, HC_IN_PLACE);
  damage(1);
  const auto before = mine_.memory();
  for (auto* lease : {header, whole})
    EXPECT_EQ(load({{1, {4, 5, 6, 7}}, {2, {8, 9, 10, 11}}}, lease),
              (codes{HC_CORRUPT_PAGE, HC_NOT_FOUND}));
  EXPECT_EQ(mine_.memory(), before);
}

TEST_F(COffloadTest, ALoadFromALeaseThatIsOverIsAMiss) {
  ASSERT_EQ(store({{1, {0, 1, 2, 3}}}), codes{HC_OK});
  client_.close();
  auto brief = c_client{configuration(folder_.socket(), R"(, "lease_ms": 1)")};
  const auto layout = mine_.layout();
  ASSERT_EQ(hc_offload_open(brief.get(), &layout, &offload_, nullptr), HC_OK);
  auto* lease = brief.keys(hc_pin, keys_of({1})).lease;
  ASSERT_NE(lease, nullptr);
  auto left = uint32_t{1};
  while (left > 0)
    ASSERT_EQ(hc_lease_pages(lease, 0, 0, nullptr, &left), HC_OK);
  const auto before = mine_.memory();
  auto code = int32_t{-1};
  // The last part of the last millisecond is not told.
  for (auto tries = 0; code != HC_NOT_FOUND && tries < 1000; ++tries)
    brief.wait(begin_load({{1, {0, 1, 2, 3}}}, &code, lease));
  EXPECT_EQ(code, HC_NOT_FOUND);
  brief.wait(begin_load({{1, {4, 5, 6, 7}}}, &code, lease));
  EXPECT_EQ(code, HC_NOT_FOUND);
  EXPECT_EQ(mine_.memory(), before);
}

TEST_F(COffloadTest, ANodeThatDiesIsAFailureOfEachPageButNotOfThoseThatAreLeased) {
  ASSERT_EQ(store({{1, {0, 1, 2, 3}}}), codes{HC_OK});
  auto* lease = pin(1);
  node_.kill();
  const auto before = mine_;
  EXPECT_EQ(load({{1, {4, 5, 6, 7}}}), codes{HC_PEER_UNREACHABLE});
  EXPECT_EQ(store({{2, {4, 5, 6, 7}}}), codes{HC_PEER_UNREACHABLE});
  EXPECT_EQ(mine_.layer(0), before.layer(0));
  EXPECT_EQ(load({{1, {4, 5, 6, 7}}}, lease), codes{HC_OK});
  auto expected = before;
  expected.take(before, {0, 1, 2, 3}, {4, 5, 6, 7});
  EXPECT_EQ(mine_.memory(), expected.memory());
}

TEST_F(COffloadTest, LayersAreWaitedForOneAfterTheOther) {
  const auto other = engine_blocks{200};
  ASSERT_EQ(client_.put(1, other.page({1, 2, 3, 4})), HC_OK);
  auto expected = mine_;
  expected.take(other, {1, 2, 3, 4}, {4, 5, 6, 12});
  node_.suspend();
  const auto ticket = begin_load({{1, {4, 5, 6, 12}}});
  EXPECT_EQ(hc_offload_wait_layer(offload_, ticket, 0, 1), HC_DEADLINE_EXCEEDED);
  node_.resume();
  for (auto layer = uint32_t{0}; layer < engine_blocks::layers; ++layer) {
    ASSERT_EQ(hc_offload_wait_layer(offload_, ticket, layer, patience_ms), HC_OK);
    EXPECT_EQ(mine_.layer(layer), expected.layer(layer));
  }
  auto error = hc_error{};
  EXPECT_EQ(hc_offload_stream_wait(offload_, ticket, 0, nullptr, 1, &error), HC_UNSUPPORTED);
  EXPECT_NE(std::string_view{error.text}.find("host memory"), std::string_view::npos);
  client_.wait(ticket);
  EXPECT_EQ(hc_offload_wait_layer(offload_, ticket, 0, patience_ms), HC_UNKNOWN_ID);
  EXPECT_EQ(hc_offload_wait_layer(offload_, ticket + 1, 0, 0), HC_UNKNOWN_ID);
  EXPECT_EQ(hc_offload_wait_layer(offload_, ticket, engine_blocks::layers, 0), HC_INVALID_ARGUMENT);
}

/// Memory whose first write waits, in the thread that writes, until release().
class slow_memory {
public:
  explicit slow_memory(size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0);
    data_ = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(data_, MAP_FAILED);
    active_ = this;
    struct sigaction action {};
    action.sa_handler = [](int) { active_->wait(); };
    EXPECT_EQ(::sigaction(SIGSEGV, &action, &before_), 0);
  }

  slow_memory(const slow_memory&) = delete;

  slow_memory& operator=(const slow_memory&) = delete;

  ~slow_memory() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(data_, bytes_);
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  void* data() const { return data_; }

  void release() const { EXPECT_EQ(::write(ends_[1], "x", 1), 1); }

private:
  void wait() const {
    auto byte = char{};
    if (::read(ends_[0], &byte, 1) != 1 || ::mprotect(data_, bytes_, PROT_READ | PROT_WRITE) != 0)
      ::abort();
  }

  static inline const slow_memory* active_ = nullptr;
  const size_t bytes_;
  void* data_ = nullptr;
  std::array<int, 2> ends_{};
  struct sigaction before_ {};
};

TEST_F(COffloadTest, ALayerIsThereWhileTheNextOneIsBeingCopied) {
  auto first = page_bytes(page_size);
  const auto last = slow_memory{page_size};
  const auto tensors = std::array{hc_tensor{first.data(), 1, page_size, page_size, 0, {}},
                                  hc_tensor{last.data(), 1, page_size, page_size, 1, {}}};
  const auto layout = hc_layout{sizeof(hc_layout), HC_HOST, 1, tensors.data(), tensors.size()};
  auto* mine = static_cast<hc_offload*>(nullptr);
  ASSERT_EQ(hc_offload_open(client_.get(), &layout, &mine, nullptr), HC_OK);
  const auto bytes = bytes_of(1, 2 * page_size);
  ASSERT_EQ(client_.put(1, bytes), HC_OK);
  const auto block = uint32_t{0};
  const auto page = hc_offload_page{key_of(1), {}, &block, {}};
  const auto how = call_for();
  auto ticket = hc_ticket{};
  ASSERT_EQ(hc_offload_load(mine, &page, 1, &how, &ticket, nullptr), HC_OK);
  EXPECT_EQ(hc_offload_wait_layer(mine, ticket, 0, patience_ms), HC_OK);
  EXPECT_EQ(std::memcmp(first.data(), bytes.data(), page_size), 0);
  EXPECT_EQ(hc_offload_wait_layer(mine, ticket, 1, 1), HC_DEADLINE_EXCEEDED);
  last.release();
  EXPECT_EQ(hc_offload_wait_layer(mine, ticket, 1, patience_ms), HC_OK);
  EXPECT_EQ(std::memcmp(last.data(), bytes.data() + page_size, page_size), 0);
  EXPECT_EQ(client_.wait(ticket).pages, 1u);
  EXPECT_EQ(hc_offload_close(mine), HC_OK);
}

TEST_F(COffloadTest, ProgressIsKeptAsLongAsTheCompletionAndNoLonger) {
  ASSERT_EQ(store({{1, {0, 1, 2, 3}}}), codes{HC_OK});
  const auto first = begin_load({{1, {0, 1, 2, 3}}});
  for (auto i = 0; i < 500; ++i)
    ASSERT_EQ(load({{1, {4, 5, 6, 7}}}), codes{HC_OK});
  EXPECT_EQ(hc_offload_wait_layer(offload_, first, engine_blocks::layers - 1, patience_ms), HC_OK);
}

TEST_F(COffloadTest, WhatIsClosedUsesTheMemoryNoMore) {
  node_.suspend();
  auto code = int32_t{-1};
  const auto ticket = begin_store({{1, {0, 1, 2, 3}}}, &code, 50);
  EXPECT_EQ(hc_offload_close(offload_), HC_OK);
  std::ranges::for_each(mine_.memory(), [](page_bytes& bytes) { page_bytes{}.swap(bytes); });
  node_.resume();
  client_.wait(ticket);
  EXPECT_EQ(code, HC_DEADLINE_EXCEEDED);
}

TEST_F(COffloadTest, ManyThreadsStoreAndLoadAtOnce) {
  auto threads = std::vector<std::thread>{};
  auto failures = std::atomic<int>{0};
  for (auto t = uint32_t{0}; t < 4; ++t)
    threads.emplace_back([&, t] {
      const auto blocks = block_list{4 * t, 4 * t + 1, 4 * t + 2, 4 * t + 3};
      for (auto i = uint64_t{0}; i < 30; ++i) {
        auto code = int32_t{-1};
        client_.wait(begin_store({{100 * t + i, blocks}}, &code));
        failures += code == HC_OK ? 0 : 1;
        client_.wait(begin_load({{100 * t + i, blocks}}, &code));
        failures += code == HC_OK ? 0 : 1;
      }
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(mine_.memory(), engine_blocks{100}.memory());
}

/// A call that is refused, and a word of the sentence.
#define EXPECT_REFUSED(code, word, ...)                                                            \
  do {                                                                                             \
    EXPECT_EQ(__VA_ARGS__, code);                                                                  \
    EXPECT_NE(std::string_view{error.text}.find(word), std::string_view::npos) << error.text;      \
  } while (false)

TEST_F(COffloadTest, WrongLayoutsAreSentences) {
  auto error = hc_error{};
  auto* made = static_cast<hc_offload*>(nullptr);
  const auto refused = [&](int32_t code, const char* word,
                           const std::function<void(hc_layout&, std::vector<hc_tensor>&)>& spoil) {
    auto tensors = mine_.tensors();
    auto layout = mine_.layout();
    layout.tensors = tensors.data();
    spoil(layout, tensors);
    EXPECT_REFUSED(code, word, hc_offload_open(client_.get(), &layout, &made, &error));
  };
  const auto tensor = [&](int32_t code, const char* word, auto spoil) {
    refused(code, word, [&](hc_layout&, std::vector<hc_tensor>& tensors) { spoil(tensors[1]); });
    EXPECT_NE(std::string_view{error.text}.find("tensor 1"), std::string_view::npos) << error.text;
  };
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "layout: NULL",
                 hc_offload_open(client_.get(), nullptr, &made, &error));
  const auto good = mine_.layout();
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "offload: NULL",
                 hc_offload_open(client_.get(), &good, nullptr, &error));
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "client: NULL",
                 hc_offload_open(nullptr, &good, &made, &error));
  refused(HC_INVALID_ARGUMENT, "sizeof", [](auto& layout, auto&) { layout.size = 8; });
  refused(HC_UNSUPPORTED, "device: 0", [](auto& layout, auto&) { layout.device = 0; });
  refused(HC_UNSUPPORTED, "device: -2", [](auto& layout, auto&) { layout.device = -2; });
  refused(HC_INVALID_ARGUMENT, "blocks_per_page: 0",
          [](auto& layout, auto&) { layout.blocks_per_page = 0; });
  refused(HC_INVALID_ARGUMENT, "blocks_per_page",
          [](auto& layout, auto&) { layout.blocks_per_page = UINT32_MAX; });
  refused(HC_INVALID_ARGUMENT, "tensors", [](auto& layout, auto&) { layout.tensor_count = 0; });
  refused(HC_INVALID_ARGUMENT, "tensors", [](auto& layout, auto&) { layout.tensors = nullptr; });
  tensor(HC_INVALID_ARGUMENT, "data", [](hc_tensor& x) { x.data = nullptr; });
  tensor(HC_INVALID_ARGUMENT, "blocks: 0", [](hc_tensor& x) { x.blocks = 0; });
  tensor(HC_INVALID_ARGUMENT, "blocks", [](hc_tensor& x) { x.blocks = UINT64_MAX; });
  tensor(HC_INVALID_ARGUMENT, "block_bytes: 0", [](hc_tensor& x) { x.block_bytes = 0; });
  tensor(HC_INVALID_ARGUMENT, "block_bytes", [](hc_tensor& x) { x.block_bytes = UINT64_MAX; });
  tensor(HC_INVALID_ARGUMENT, "stride: 511", [](hc_tensor& x) { x.stride = 511; });
  tensor(HC_INVALID_ARGUMENT, "stride", [](hc_tensor& x) { x.stride = UINT64_MAX; });
  tensor(HC_INVALID_ARGUMENT, "layer: 2; expected 0 or 1", [](hc_tensor& x) { x.layer = 2; });
  tensor(HC_INVALID_ARGUMENT, "a page has more than",
         [](hc_tensor& x) { x.block_bytes = x.stride = uint64_t{100} << 20; });
  tensor(HC_UNSUPPORTED, "reserved", [](hc_tensor& x) { x.reserved[1] = 1; });
  refused(HC_INVALID_ARGUMENT, "tensor 0: layer: 1; expected 0",
          [](auto&, auto& tensors) { tensors[0].layer = 1; });
  EXPECT_EQ(made, nullptr);
}

TEST_F(COffloadTest, WrongCallsAreSentencesAndNothingBegins) {
  auto error = hc_error{};
  auto ticket = hc_ticket{0};
  const auto blocks = block_list{0, 1, 2, 3};
  const auto good = hc_offload_page{key_of(1), {}, blocks.data(), {}};
  const auto how = call_for();
  const auto both = [&](int32_t code, const char* word, const hc_offload_page* pages, size_t count,
                        const hc_call* call) {
    EXPECT_REFUSED(code, word,
                   hc_offload_store(offload_, pages, count, call, nullptr, &ticket, &error));
    EXPECT_REFUSED(code, word, hc_offload_load(offload_, pages, count, call, &ticket, &error));
  };
  both(HC_INVALID_ARGUMENT, "pages: NULL", nullptr, 1, &how);
  both(HC_INVALID_ARGUMENT, "count", nullptr, 0, &how);
  both(HC_INVALID_ARGUMENT, "count", &good, HC_MAX_PAGES + 1, &how);
  both(HC_INVALID_ARGUMENT, "call: NULL", &good, 1, nullptr);
  auto other = how;
  other.timeout_ms = 0;
  both(HC_INVALID_ARGUMENT, "timeout_ms", &good, 1, &other);
  other = how;
  other.flags = HC_CHAIN;
  both(HC_UNSUPPORTED, "flags", &good, 1, &other);
  auto page = good;
  page.reserved[0] = 1;
  both(HC_UNSUPPORTED, "page 0: reserved", &page, 1, &how);
  page = good;
  page.blocks = nullptr;
  both(HC_INVALID_ARGUMENT, "page 0: blocks: NULL", &page, 1, &how);
  const auto beyond = block_list{0, 1, 2, block_count};
  page.blocks = beyond.data();
  both(HC_INVALID_ARGUMENT, "blocks: 16; there are 16", &page, 1, &how);
  const auto gap = block_list{0, 1, 2, HC_NO_BLOCK};
  page.blocks = gap.data();
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "one is left out",
                 hc_offload_store(offload_, &page, 1, &how, nullptr, &ticket, &error));
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "event",
                 hc_offload_store(offload_, &good, 1, &how, &error, &ticket, &error));
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "ticket",
                 hc_offload_store(offload_, &good, 1, &how, nullptr, nullptr, &error));
  EXPECT_REFUSED(HC_INVALID_ARGUMENT, "offload: NULL",
                 hc_offload_load(nullptr, &good, 1, &how, &ticket, &error));
  ASSERT_EQ(store({{1, blocks}}), codes{HC_OK});
  other = how;
  other.lease = pin(1);
  EXPECT_REFUSED(HC_UNSUPPORTED, "lease",
                 hc_offload_store(offload_, &good, 1, &other, nullptr, &ticket, &error));
  auto stranger = c_client{configuration(folder_.socket())};
  other.lease = stranger.keys(hc_pin, keys_of({1})).lease;
  EXPECT_REFUSED(HC_UNKNOWN_ID, "lease",
                 hc_offload_load(offload_, &good, 1, &other, &ticket, &error));
  EXPECT_EQ(hc_offload_page_bytes(nullptr), 0u);
  EXPECT_EQ(hc_offload_close(nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_offload_wait_layer(nullptr, 1, 0, 0), HC_INVALID_ARGUMENT);
  EXPECT_EQ(ticket, 0u);
  EXPECT_EQ(client_.counters().open_calls, 0u);
}

} // namespace
} // namespace hicache::test
