#include "actors/controller.hpp"
#include "tests/actors/fakes.hpp"

#include <cstring>

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto shape = pool_shape{3, 2, 4, 2, 2, 4};

class ControllerTest : public actor_test {
protected:
  ControllerTest()
    : l1_(shape, host_layout::layer_first, 8), l2_(shape, host_layout::page_first, 12) {
    auto machine = make_device(device_kind::host, copy_threads::none);
    device_ = std::move(*machine);
    l1_memory_ = std::move(*device_->allocate(l1_.total_bytes()));
    l2_memory_ = std::move(*device_->allocate_host(l2_.total_bytes()));
    auto copies = device_->make_copy_engine(l1_, *l1_memory_, l2_, *l2_memory_);
    controller_ = spawn(controller, std::move(*copies), l2_.page_bytes());
    tree_ = spawn(recorder, log_);
  }

  ~ControllerTest() override { stop_all(); }

  template <class Verb, class Command>
  void command(Verb verb, const Command& x) {
    send_as(tree_, controller_, verb, x);
    run();
  }

  /// Fills an L1 page with bytes of its own.
  void fill(page_index page, uint8_t value) {
    for (auto layer = 0u; layer < shape.layers; ++layer)
      for (const auto half : {kv_half::key, kv_half::value}) {
        const auto rows = l1_.rows(layer, half, page);
        for (auto row = uint64_t{0}; row < rows.rows; ++row)
          std::memset(l1_memory_->data() + rows.offset + row * rows.stride,
                      value + static_cast<int>(layer * 8 + row), rows.row_bytes);
      }
  }

  std::vector<std::byte> page_in(const pool_geometry& pool, device_memory& memory,
                                 page_index page) {
    auto bytes = std::vector<std::byte>{};
    for (auto layer = 0u; layer < shape.layers; ++layer)
      for (const auto half : {kv_half::key, kv_half::value}) {
        const auto rows = pool.rows(layer, half, page);
        for (auto row = uint64_t{0}; row < rows.rows; ++row) {
          const auto* at = memory.data() + rows.offset + row * rows.stride;
          bytes.insert(bytes.end(), at, at + rows.row_bytes);
        }
      }
    return bytes;
  }

  pool_geometry l1_;
  pool_geometry l2_;
  std::unique_ptr<device> device_;
  std::unique_ptr<device_memory> l1_memory_;
  std::unique_ptr<device_memory> l2_memory_;
  controller_actor controller_;
  std::shared_ptr<recording> log_ = std::make_shared<recording>();
  caf::actor tree_;
};

TEST_F(ControllerTest, WriteBringsTheBytesToL2AndIsReportedToItsSender) {
  fill(2, 10);
  fill(5, 100);
  command(atom::write_v, write_command{1, pages_of({2, 5}), pages_of({11, 3})});
  EXPECT_EQ(page_in(l2_, *l2_memory_, 11), page_in(l1_, *l1_memory_, 2));
  EXPECT_EQ(page_in(l2_, *l2_memory_, 3), page_in(l1_, *l1_memory_, 5));
  ASSERT_EQ(log_->done.size(), 1u);
  EXPECT_EQ(log_->done[0].kind, operation_kind::write);
  EXPECT_EQ(log_->done[0].id, 1u);
  EXPECT_TRUE(log_->done[0].ok);
}

TEST_F(ControllerTest, LoadBringsThemBackAndCountsTheLayers) {
  fill(1, 40);
  const auto bytes = page_in(l1_, *l1_memory_, 1);
  command(atom::write_v, write_command{1, pages_of({1}), pages_of({7})});
  fill(1, 0);
  const auto progress = std::make_shared<layer_progress>(shape.layers);
  command(atom::load_v, load_command{1, pages_of({7}), pages_of({4}), progress});
  EXPECT_EQ(page_in(l1_, *l1_memory_, 4), bytes);
  EXPECT_EQ(progress->done(), shape.layers);
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(log_->done[1].kind, operation_kind::load);
}

TEST_F(ControllerTest, CommandsOfAKindAreReportedInOrder) {
  for (auto id = operation_id{1}; id <= 5; ++id)
    send_as(tree_, controller_, atom::write_v,
            write_command{id, pages_of({1}), pages_of({static_cast<page_index>(id)})});
  run();
  ASSERT_EQ(log_->done.size(), 5u);
  for (auto id = operation_id{1}; id <= 5; ++id)
    EXPECT_EQ(log_->done[id - 1].id, id);
}

TEST_F(ControllerTest, CountsTheBytesOfEachDirection) {
  command(atom::write_v, write_command{1, pages_of({1, 2, 3}), pages_of({1, 2, 3})});
  command(atom::load_v, load_command{1, pages_of({1}), pages_of({4}),
                                     std::make_shared<layer_progress>(shape.layers)});
  const auto counters = ask<rank_counters>(controller_, atom::counters_v);
  ASSERT_TRUE(counters);
  EXPECT_EQ(counters->bytes_l1_to_l2, 3 * l2_.page_bytes());
  EXPECT_EQ(counters->bytes_l2_to_l1, l2_.page_bytes());
}

/// An engine whose copies fail.
class broken_engine final : public copy_engine {
public:
  void store(page_list, page_list, callback done) override { done(fail(ec::copy_failed)); }

  void load(page_list, page_list, layer_progress_ptr progress, callback done) override {
    progress->fail();
    done(fail(ec::copy_failed));
  }

  void drain() override {}
};

TEST_F(ControllerTest, FailedCopiesAreReportedAsSuch) {
  controller_ = spawn(controller, std::unique_ptr<copy_engine>{new broken_engine}, uint64_t{64});
  command(atom::write_v, write_command{1, pages_of({1}), pages_of({1})});
  command(atom::load_v,
          load_command{1, pages_of({1}), pages_of({1}), std::make_shared<layer_progress>(1)});
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_FALSE(log_->done[0].ok);
  EXPECT_FALSE(log_->done[1].ok);
}

} // namespace
} // namespace hicache
