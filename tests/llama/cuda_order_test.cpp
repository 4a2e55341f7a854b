// What the engine's CUDA path waits for, on a CUDA runtime that notes every race.

#include "gpu/cuda_memory.hpp"
#include "gpu/cuda_mover.hpp"
#include "tests/gpu/fake_cuda/fake_cuda.hpp"
#include "tests/llama/tiny_model.hpp"

#include <gmock/gmock.h>

#include <array>

namespace llama::test {
namespace {

using namespace hicache;
using testing::IsEmpty;
using testing::Not;

constexpr auto pool_pages = uint32_t{8};

class CudaOrderTest : public testing::Test {
protected:
  CudaOrderTest() {
    fake_cuda::reset(1);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    memory_ = std::move(*allocate_cuda_memory(0, l1_.total_bytes(), "L1"));
    l2_memory_ = std::move(*allocate_pinned_memory(0, l2_.total_bytes(), {}));
    const auto layers = device_layers::of(l1_, reinterpret_cast<uint64_t>(memory_->data()));
    mover_ = std::move(
      *make_cuda_mover(0, layers, l2_, l2_memory_->data(), {}, cuda_copy_method::batched));
    model_ = std::make_unique<transformer>(
      config_, tiny_weights(config_), layers, element_type::fp32,
      std::move(*make_cuda_processor(layers.buffers.front().address)), rank_sum{});
  }

  ~CudaOrderTest() override {
    model_.reset();
    mover_.reset();
    memory_.reset();
    l2_memory_.reset();
    fake_cuda::reset(1); // The device may be lost.
  }

  void begin(copy_direction direction, uint32_t set, page_index page) {
    const auto pages = std::array{page};
    const auto begun = mover_->begin(direction, set, pages, pages);
    EXPECT_TRUE(begun) << to_string(begun.error());
  }

  const model_config config_ = tiny_config();
  const pool_geometry l1_
    = tiny_pool(config_, element_type::fp32, 16, host_layout::layer_first, pool_pages);
  const pool_geometry l2_
    = tiny_pool(config_, element_type::fp32, 16, host_layout::page_first, pool_pages);
  std::unique_ptr<device_memory> memory_;
  std::unique_ptr<device_memory> l2_memory_;
  std::unique_ptr<page_mover> mover_;
  std::unique_ptr<transformer> model_;
};

/// Has a load end only when the pass has queued its last layer, so that nothing but the stream
/// waits for it. The first `skipped` layers are said to be loaded, and are not.
class slow_load final : public pass_watch {
public:
  slow_load(layer_progress& loading, uint32_t skipped) : loading_(loading) {
    loading_.advance(skipped);
  }

  void stored(uint32_t) override {}

  void stored_everywhere(uint32_t layer) override {
    if (layer + 1 == loading_.layers())
      loading_.advance(loading_.layers());
  }

private:
  layer_progress& loading_;
};

TEST_F(CudaOrderTest, EachLayerWaitsForItsLoad) {
  for (auto skipped = uint32_t{0}; skipped <= config_.layers; ++skipped) {
    const auto before = fake_cuda::races().size();
    auto progress = layer_progress{config_.layers};
    begin(copy_direction::load, 0, 1);
    progress.queue(mover_->layer_events(0));
    auto slow = slow_load{progress, skipped};
    auto sequence = tiny_sequence{random_tokens(config_, 20, 1), {1, 2}, 16};
    compute(*model_, {&sequence}, 16, &progress, &slow);
    // With layers skipped it shows that a race is noticed.
    EXPECT_EQ(fake_cuda::races().size() > before, skipped > 0) << skipped;
    for (auto layer = uint32_t{0}; layer < config_.layers; ++layer)
      EXPECT_TRUE(mover_->finish_layer(copy_direction::load, 0, layer));
  }
}

TEST_F(CudaOrderTest, AnEventTellsWhenThePagesAreComplete) {
  auto sequence = tiny_sequence{random_tokens(config_, 33, 1), {1, 2, 3}};
  const auto done = compute(*model_, {&sequence}, 16); // Without scores, so that nobody waits.
  const auto pages = std::array{page_index{1}};
  EXPECT_TRUE(mover_->fences()->add(pages, done.after));
  begin(copy_direction::store, 0, 1);
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
  EXPECT_TRUE(mover_->finish_layer(copy_direction::store, 0, config_.layers - 1));
  compute(*model_, {&sequence}, 16);
  begin(copy_direction::store, 0, 2);
  EXPECT_THAT(fake_cuda::races(), Not(IsEmpty())) << "without the event";
}

TEST_F(CudaOrderTest, ALostDeviceIsASentence) {
  auto tokens = random_tokens(config_, 4, 1);
  const auto pages = std::array{page_index{1}};
  const auto slices = std::array{slice{tokens, 0, pages, nullptr, true}};
  EXPECT_TRUE(model_->compute(slices));
  fake_cuda::lose_device();
  const auto lost = model_->compute(slices);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ec::device_lost);
  EXPECT_EQ(lost.error().detail, "cudaSetDevice: an illegal memory access");
}

} // namespace
} // namespace llama::test
