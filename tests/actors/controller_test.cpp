#include "actors/controller.hpp"
#include "tests/actors/fakes.hpp"

#include <bit>
#include <cstring>

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto shape = pool_shape{attention_kind::mha, 3, 2, 4, 2, 2, 4};

/// An engine whose copies fail.
class broken_engine final : public copy_engine {
public:
  void store(std::vector<write_command> commands, callback done) override {
    for (const auto& command : commands)
      done(command.id, fail(ec::copy_failed));
  }

  void load(std::vector<load_command> commands, callback done) override {
    for (const auto& command : commands) {
      command.progress->fail();
      done(command.id, fail(ec::copy_failed));
    }
  }

  void drain() override {}
};

/// An engine that notes what it is asked for and copies nothing.
class counting_engine final : public copy_engine {
public:
  void store(std::vector<write_command> commands, callback) override {
    submissions.push_back(std::to_string(commands.size()) + " stores");
  }

  void load(std::vector<load_command> commands, callback) override {
    submissions.push_back(std::to_string(commands.size()) + " loads");
  }

  void drain() override {}

  std::vector<std::string> submissions;
};

class ControllerTest : public actor_test {
protected:
  ControllerTest()
    : l1_(shape, host_layout::layer_first, 8), l2_(shape, host_layout::page_first, 12) {
    auto machine = make_device(device_kind::host);
    device_ = std::move(*machine);
    l1_memory_ = std::move(*device_->allocate(l1_.total_bytes()));
    l2_memory_ = std::move(*device_->allocate_host(l2_.total_bytes(), {}));
    auto copies = device_->make_copy_engine(
      device_layers::of(l1_, std::bit_cast<uint64_t>(l1_memory_->data())), l2_, *l2_memory_,
      {.inline_copies = true});
    controller_ = spawn(controller, std::move(*copies), l2_.page_bytes(), nullptr);
    tree_ = spawn(recorder, log_);
  }

  ~ControllerTest() override { stop_all(); }

  void copy(std::vector<write_command> writes, std::vector<load_command> loads) {
    send_as(tree_, controller_, atom::copy_v, copy_batch{std::move(writes), std::move(loads)});
    run();
  }

  /// Fills an L1 page with bytes of its own.
  void fill(page_index page, uint8_t value) {
    for (auto layer = 0u; layer < shape.layers; ++layer)
      for (const auto part : l1_.parts()) {
        const auto rows = l1_.rows(layer, part, page);
        for (auto row = uint64_t{0}; row < rows.rows; ++row)
          std::memset(l1_memory_->data() + rows.offset + row * rows.stride,
                      value + static_cast<int>(layer * 8 + row), rows.row_bytes);
      }
  }

  std::vector<std::byte> page_in(const pool_geometry& pool, device_memory& memory,
                                 page_index page) {
    auto bytes = std::vector<std::byte>{};
    for (auto layer = 0u; layer < shape.layers; ++layer)
      for (const auto part : l1_.parts()) {
        const auto rows = pool.rows(layer, part, page);
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
  copy({{1, pages_of({2, 5}), pages_of({11, 3})}}, {});
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
  copy({{1, pages_of({1}), pages_of({7})}}, {});
  fill(1, 0);
  const auto progress = std::make_shared<layer_progress>(shape.layers);
  copy({}, {{1, pages_of({7}), pages_of({4}), progress}});
  EXPECT_EQ(page_in(l1_, *l1_memory_, 4), bytes);
  EXPECT_EQ(progress->done(), shape.layers);
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_EQ(log_->done[1].kind, operation_kind::load);
}

TEST_F(ControllerTest, ABatchIsOneSubmissionInEachDirection) {
  auto counted = std::make_unique<counting_engine>();
  const auto& engine = *counted;
  controller_
    = spawn(controller, std::unique_ptr<copy_engine>{std::move(counted)}, uint64_t{64}, nullptr);
  const auto progress = std::make_shared<layer_progress>(1);
  copy({{1, pages_of({1}), pages_of({1})}, {2, pages_of({2}), pages_of({2})}},
       {{1, pages_of({3}), pages_of({3}), progress}, {2, pages_of({4}), pages_of({4}), progress}});
  EXPECT_EQ(engine.submissions, (std::vector<std::string>{"2 loads", "2 stores"}));
}

TEST_F(ControllerTest, CommandsOfAKindAreReportedInOrder) {
  auto writes = std::vector<write_command>{};
  for (auto id = operation_id{1}; id <= 5; ++id)
    writes.push_back({id, pages_of({1}), pages_of({static_cast<page_index>(id)})});
  copy(writes, {});
  copy({{6, pages_of({1}), pages_of({6})}}, {});
  ASSERT_EQ(log_->done.size(), 6u);
  for (auto id = operation_id{1}; id <= 6; ++id)
    EXPECT_EQ(log_->done[id - 1].id, id);
}

TEST_F(ControllerTest, CountsTheBytesOfEachDirection) {
  copy({{1, pages_of({1, 2, 3}), pages_of({1, 2, 3})}},
       {{1, pages_of({1}), pages_of({4}), std::make_shared<layer_progress>(shape.layers)}});
  const auto counters = ask<rank_counters>(controller_, atom::counters_v);
  ASSERT_TRUE(counters);
  EXPECT_EQ(counters->bytes_l1_to_l2, 3 * l2_.page_bytes());
  EXPECT_EQ(counters->bytes_l2_to_l1, l2_.page_bytes());
}

TEST_F(ControllerTest, FailedCopiesAreReportedAsSuch) {
  controller_
    = spawn(controller, std::unique_ptr<copy_engine>{new broken_engine}, uint64_t{64}, nullptr);
  copy({{1, pages_of({1}), pages_of({1})}},
       {{1, pages_of({1}), pages_of({1}), std::make_shared<layer_progress>(1)}});
  ASSERT_EQ(log_->done.size(), 2u);
  EXPECT_FALSE(log_->done[0].ok);
  EXPECT_FALSE(log_->done[1].ok);
}

} // namespace
} // namespace hicache
