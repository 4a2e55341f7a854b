#include "gpu/queued_copy_engine.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hicache {
namespace {

constexpr auto shape = pool_shape{
  .layers = 4, .kv_heads = 1, .head_dim = 2, .v_head_dim = 2, .element_bytes = 2, .page_size = 1};

/// Fails every operation on page 1; a load fails after two layers.
class failing_mover final : public page_mover {
public:
  result<void> store(std::span<const page_index> device_pages,
                     std::span<const page_index>) override {
    if (device_pages[0] == 1)
      return fail(ec::copy_failed, "store broke");
    return {};
  }

  result<void> load(std::span<const page_index>, std::span<const page_index> device_pages,
                    const layer_callback& arrived) override {
    if (device_pages[0] == 1) {
      arrived(2);
      return fail(ec::copy_failed, "load broke");
    }
    arrived(shape.layers);
    return {};
  }
};

class QueuedCopyEngineTest : public testing::TestWithParam<copy_threads> {
protected:
  static page_list page(page_index number) {
    return std::make_shared<const std::vector<page_index>>(1, number);
  }

  std::unique_ptr<copy_engine> engine_
    = make_queued_copy_engine(pool_geometry{shape, host_layout::layer_first, 3},
                              pool_geometry{shape, host_layout::page_first, 3},
                              std::make_unique<failing_mover>(), GetParam());
  std::vector<result<void>> results_;
};

TEST_P(QueuedCopyEngineTest, AFailedStoreIsReportedAndTheNextOneRuns) {
  for (const auto number : {1u, 2u})
    engine_->store(page(number), page(number), [&](auto done) { results_.push_back(done); });
  engine_->drain();
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_EQ(results_[0].error(), (error{ec::copy_failed, "store broke"}));
  EXPECT_TRUE(results_[1]);
}

TEST_P(QueuedCopyEngineTest, AFailedLoadWakesWhoWaitsForItsLayers) {
  const auto broken = std::make_shared<layer_progress>(shape.layers);
  const auto good = std::make_shared<layer_progress>(shape.layers);
  engine_->load(page(1), page(1), broken, [&](auto done) { results_.push_back(done); });
  engine_->load(page(2), page(2), good, [&](auto done) { results_.push_back(done); });
  EXPECT_TRUE(broken->wait(1));
  EXPECT_FALSE(broken->wait(2));
  EXPECT_TRUE(good->wait(3));
  engine_->drain();
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_EQ(results_[0].error().code, ec::copy_failed);
  EXPECT_TRUE(results_[1]);
  EXPECT_TRUE(broken->failed());
  EXPECT_EQ(broken->done(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Threads, QueuedCopyEngineTest,
                         testing::Values(copy_threads::none, copy_threads::one_per_direction),
                         [](const auto& chosen) {
                           return chosen.param == copy_threads::none ? "inline_" : "threads";
                         });

} // namespace
} // namespace hicache
