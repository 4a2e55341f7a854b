// The transformer on a GPU against one thread of the CPU, with and without cached pages. Also runs
// on the double of the CUDA runtime, where it needs no GPU.

#include "gpu/cuda_device.hpp"
#include "tests/llama/tiny_model.hpp"

#include <array>
#include <future>

namespace llama::test {
namespace {

using namespace hicache;

class CudaProcessorTest : public testing::Test {
protected:
  void SetUp() override {
    auto opened = make_cuda_device();
    if (!opened)
      GTEST_SKIP() << opened.error().detail;
    device_ = std::move(*opened);
  }

  /// The model with its KV on the GPU.
  transformer make(element_type format, uint32_t page_size) {
    const auto pages = pages_of_three(page_size);
    const auto pool = tiny_pool(config_, format, page_size, host_layout::layer_first, pages);
    memory_ = std::move(*device_->allocate(pool.total_bytes()));
    layers_ = device_layers::of(pool, reinterpret_cast<uint64_t>(memory_->data()));
    auto made = make_cuda_processor(layers_.buffers.front().address);
    EXPECT_TRUE(made) << made.error().detail;
    return {config_, tiny_weights(config_), layers_, format, std::move(*made), {}};
  }

  /// Copies with an L2 of as many pages.
  std::unique_ptr<copy_engine> make_copies(uint32_t page_size) {
    const auto l2 = tiny_pool(config_, element_type::fp32, page_size, host_layout::page_first,
                              pages_of_three(page_size));
    l2_memory_ = std::move(*device_->allocate_host(l2.total_bytes(), {}));
    auto copies = device_->make_copy_engine(layers_, l2, *l2_memory_, {});
    EXPECT_TRUE(copies) << copies.error().detail;
    return std::move(*copies);
  }

  const model_config config_ = tiny_config();
  std::unique_ptr<device> device_;
  std::unique_ptr<device_memory> memory_;
  std::unique_ptr<device_memory> l2_memory_;
  device_layers layers_;
};

TEST_F(CudaProcessorTest, ComputesWhatThePlainProcessorComputes) {
  expect_what_the_plain_one_computes([this](element_type format, uint32_t page_size) {
    auto model = make(format, page_size);
    return complete_three(model, page_size);
  });
}

TEST_F(CudaProcessorTest, PagesFromL2GiveTheSameTokens) {
  constexpr auto page_size = uint32_t{16};
  auto model = make(element_type::fp32, page_size);
  const auto copies = make_copies(page_size);
  const auto expected = complete_plainly(element_type::fp32, page_size);
  const auto prompt = std::vector(expected[1].tokens.begin(), expected[1].tokens.begin() + 150);
  const auto cached = prompt.size() / page_size;
  auto pages = std::vector<page_index>(cached + 2);
  std::iota(pages.begin(), pages.end(), page_index{1});
  const auto in_l1 = std::make_shared<const std::vector<page_index>>(
    pages.begin(), pages.begin() + static_cast<ptrdiff_t>(cached));

  // A pass without scores: nobody waits for it but the copy, by the event.
  auto first = tiny_sequence{prompt, pages};
  first.tokens.resize(cached * page_size + 1);
  const auto computed = compute(model, {&first}, cached * page_size);
  ASSERT_NE(computed.after, nullptr);
  ASSERT_TRUE(copies->fences()->add(*in_l1, computed.after));
  auto stored = std::promise<result<void>>{};
  copies->store({{1, in_l1, in_l1}},
                [&](auto, const result<void>& done) { stored.set_value(done); });
  ASSERT_TRUE(stored.get_future().get());

  auto nothing = std::vector<std::byte>(memory_->size());
  ASSERT_TRUE(memory_->write(0, nothing));
  const auto progress = std::make_shared<layer_progress>(config_.layers);
  auto loaded = std::promise<result<void>>{};
  copies->load({{2, in_l1, in_l1, progress}},
               [&](auto, const result<void>& done) { loaded.set_value(done); });
  auto second = tiny_sequence{prompt, pages, cached * page_size};
  EXPECT_TRUE(compute(model, {&second}, page_size, progress.get()).is_loaded);
  for (auto step = 1; step < 10; ++step)
    compute(model, {&second}, 1);
  ASSERT_TRUE(loaded.get_future().get());
  EXPECT_EQ(second.tokens, expected[1].tokens);
}

TEST_F(CudaProcessorTest, ALoadThatFailsIsNoticed) {
  auto model = make(element_type::fp32, 16);
  auto progress = layer_progress{config_.layers};
  progress.fail();
  auto sequence = tiny_sequence{random_tokens(config_, 20, 1), {1, 2}, 16};
  EXPECT_FALSE(compute(model, {&sequence}, 16, &progress).is_loaded);
}

} // namespace
} // namespace llama::test
