// Blocks in the memory of a CUDA device, with fake_cuda.cpp in place of the driver: which calls are
// made, not whether a GPU does them.

#include "tests/c_abi/c_abi_support.hpp"
#include "tests/c_abi/fake_cuda.hpp"

#include <array>
#include <cstring>
#include <string_view>

namespace hicache::test {
namespace {

constexpr auto block_bytes = size_t{256};
constexpr auto blocks = size_t{8};

class CCudaTest : public ::testing::Test {
protected:
  CCudaTest() {
    auto error = hc_error{};
    EXPECT_EQ(open(0, error), HC_OK) << error.text;
  }

  int32_t open(int32_t device, hc_error& error) {
    auto tensors = std::array<hc_tensor, 2>{};
    for (auto i = size_t{0}; i < 2; ++i)
      tensors[i] = {device_address(memory_[i].data()), blocks, block_bytes, block_bytes, i, {}};
    const auto layout = hc_layout{sizeof(hc_layout), device, 2, tensors.data(), tensors.size()};
    return hc_offload_open(client_.get(), &layout, &offload_, &error);
  }

  /// What a page of these blocks is.
  page_bytes page(size_t first, size_t second) const {
    auto page = page_bytes{};
    for (const auto& tensor : memory_)
      for (const auto block : {first, second})
        page.insert(page.end(), &tensor[block * block_bytes],
                    &tensor[block * block_bytes] + block_bytes);
    return page;
  }

  int32_t store(uint64_t number, std::array<uint32_t, 2> where, void* event = nullptr) {
    auto code = int32_t{-1};
    auto how = call_for();
    how.codes = &code;
    const auto made = hc_offload_page{key_of(number), {}, where.data(), {}};
    auto ticket = hc_ticket{};
    EXPECT_EQ(hc_offload_store(offload_, &made, 1, &how, event, &ticket, nullptr), HC_OK);
    text_ = client_.wait(ticket).error.text;
    return code;
  }

  int32_t load(uint64_t number, std::array<uint32_t, 2> where, hc_ticket* ticket) {
    auto code = int32_t{-1};
    auto how = call_for();
    how.codes = &code;
    const auto made = hc_offload_page{key_of(number), {}, where.data(), {}};
    EXPECT_EQ(hc_offload_load(offload_, &made, 1, &how, ticket, nullptr), HC_OK);
    layer_ = hc_offload_wait_layer(offload_, *ticket, 1, patience_ms);
    stream_ = hc_offload_stream_wait(offload_, *ticket, 1, nullptr, patience_ms, nullptr);
    text_ = client_.wait(*ticket).error.text;
    return code;
  }

  socket_folder folder_;
  node_process node_{folder_.socket()};
  std::array<page_bytes, 2> memory_{bytes_of(1, blocks* block_bytes),
                                    bytes_of(2, blocks* block_bytes)};
  c_client client_{configuration(folder_.socket())};
  hc_offload* offload_ = nullptr;
  std::string text_;
  int32_t layer_ = -1;
  int32_t stream_ = -1;
};

TEST_F(CCudaTest, BlocksAreStoredAndLoadedByTheDevice) {
  const auto before = fake_cuda_state();
  ASSERT_EQ(store(1, {1, 4}), HC_OK);
  auto bytes = page_bytes(4 * block_bytes);
  ASSERT_EQ(client_.get(1, bytes), HC_OK);
  EXPECT_EQ(bytes, page(1, 4));
  auto ticket = hc_ticket{};
  ASSERT_EQ(load(1, {6, HC_NO_BLOCK}, &ticket), HC_OK);
  EXPECT_EQ(layer_, HC_OK);
  EXPECT_EQ(stream_, HC_OK);
  EXPECT_EQ(page(6, 7), page(1, 7));
  EXPECT_EQ(fake_cuda_state().copies_to_host, before.copies_to_host + 4);
  EXPECT_EQ(fake_cuda_state().copies_to_device, before.copies_to_device + 2);
}

TEST_F(CCudaTest, AStoreWaitsForTheEventOnTheDevice) {
  const auto before = fake_cuda_state().waits;
  auto event = 0;
  ASSERT_EQ(store(1, {0, 1}, &event), HC_OK);
  EXPECT_EQ(fake_cuda_state().waits, before + 1);
}

TEST_F(CCudaTest, WhatTheDeviceRefusesIsAFailureOfThePage) {
  fail_copy_after(1);
  EXPECT_EQ(store(1, {1, 4}), HC_IO_FAILURE);
  EXPECT_NE(text_.find("a failure of the test"), std::string::npos) << text_;
  EXPECT_EQ(client_.keys(hc_lookup, keys_of({1})).pages, 0u);
  ASSERT_EQ(store(1, {1, 4}), HC_OK);
  fail_copy_after(1);
  auto ticket = hc_ticket{};
  EXPECT_EQ(load(1, {6, 7}, &ticket), HC_IO_FAILURE);
  EXPECT_EQ(layer_, HC_NOT_FOUND);
  EXPECT_EQ(stream_, HC_NOT_FOUND);
  EXPECT_EQ(load(1, {6, 7}, &ticket), HC_OK);
  EXPECT_EQ(page(6, 7), page(1, 4));
}

TEST_F(CCudaTest, NothingOfTheDeviceIsLeftBehind) {
  ASSERT_EQ(store(1, {0, 1}), HC_OK);
  auto ticket = hc_ticket{};
  ASSERT_EQ(load(1, {2, 3}, &ticket), HC_OK);
  EXPECT_EQ(fake_cuda_state().contexts, 1u);
  client_.close();
  const auto left = fake_cuda_state();
  EXPECT_EQ(left.streams, 0u);
  EXPECT_EQ(left.events, 0u);
  EXPECT_EQ(left.contexts, 0u);
}

TEST_F(CCudaTest, ADeviceThatIsNotThereIsASentence) {
  auto error = hc_error{};
  EXPECT_EQ(open(1, error), HC_UNSUPPORTED);
  EXPECT_NE(std::string_view{error.text}.find("device: 1; the CUDA driver offers no such device"),
            std::string_view::npos)
    << error.text;
}

} // namespace
} // namespace hicache::test
