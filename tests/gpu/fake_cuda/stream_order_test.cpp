// Which device a rank uses, and what waits for what on it, on a CUDA runtime that notes every race.

#include "gpu/cuda_device.hpp"
#include "gpu/cuda_fences.hpp"
#include "gpu/cuda_memory.hpp"
#include "gpu/cuda_mover.hpp"
#include "gpu/device.hpp"
#include "tests/gpu/fake_cuda/fake_cuda.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <random>

namespace hicache {

namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto shape = pool_shape{attention_kind::mha, 2, 2, 8, 8, 2, 4};
constexpr auto pool_pages = uint32_t{8};
constexpr auto local_rank_name = "OMPI_COMM_WORLD_LOCAL_RANK";
constexpr auto torchrun_name = "LOCAL_RANK";

page_list list(std::vector<page_index> pages) {
  return std::make_shared<const std::vector<page_index>>(std::move(pages));
}

/// The engine's side: a stream of its own, and events.
struct engine_stream {
  engine_stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess); }

  ~engine_stream() { static_cast<void>(cudaStreamDestroy(stream)); }

  engine_stream(const engine_stream&) = delete;
  engine_stream& operator=(const engine_stream&) = delete;

  /// An event behind what is queued.
  unique_event mark() const {
    auto* event = cudaEvent_t{nullptr};
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    return unique_event{event};
  }

  cudaStream_t stream = nullptr;
};

class StreamOrderTest : public testing::Test {
protected:
  void SetUp() override {
    unsetenv(local_rank_name);
    unsetenv(torchrun_name);
    fake_cuda::reset(4);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }

  void TearDown() override {
    EXPECT_THAT(fake_cuda::misplaced(), IsEmpty());
    mover_.reset();
    l1_memory_.reset();
    l2_memory_.reset();
    unsetenv(local_rank_name);
    unsetenv(torchrun_name);
  }

  void make(cuda_copy_method method = cuda_copy_method::batched) {
    l1_memory_ = std::move(*allocate_cuda_memory(0, l1_.total_bytes(), "L1"));
    l2_memory_ = std::move(*allocate_pinned_memory(0, l2_.total_bytes(), {}));
    layers_ = device_layers::of(l1_, reinterpret_cast<uint64_t>(l1_memory_->data()));
    mover_ = std::move(*make_cuda_mover(0, layers_, l2_, l2_memory_->data(), {}, method));
  }

  /// What a kernel that works on one layer of a page touches.
  std::vector<fake_cuda::range> rows(page_index page, uint32_t layer) const {
    auto ranges = std::vector<fake_cuda::range>{};
    for (auto part = size_t{0}; part < 2; ++part) {
      const auto& buffer = layers_.buffers[part * shape.layers + layer];
      ranges.push_back(
        {reinterpret_cast<const void*>(buffer.address + page * buffer.page_stride), 64});
    }
    return ranges;
  }

  void read(const engine_stream& engine, page_index page, uint32_t layer) const {
    fake_cuda::launch(engine.stream, rows(page, layer), {});
  }

  void read(const engine_stream& engine, page_index page) const {
    for (auto layer = uint32_t{0}; layer < shape.layers; ++layer)
      read(engine, page, layer);
  }

  void write(const engine_stream& engine, page_index page) const {
    for (auto layer = uint32_t{0}; layer < shape.layers; ++layer)
      fake_cuda::launch(engine.stream, {}, rows(page, layer));
  }

  void begin(copy_direction direction, uint32_t set, page_index device, page_index host) {
    const auto from = std::array{device};
    const auto to = std::array{host};
    const auto begun = mover_->begin(direction, set, from, to);
    EXPECT_TRUE(begun) << to_string(begun.error());
  }

  void finish(copy_direction direction, uint32_t set) {
    for (auto layer = uint32_t{0}; layer < shape.layers; ++layer)
      if (direction == copy_direction::load || layer + 1 == shape.layers) {
        EXPECT_TRUE(mover_->finish_layer(direction, set, layer));
      }
  }

  void fence(page_index page, const unique_event& event) {
    const auto pages = std::array{page};
    EXPECT_TRUE(mover_->fences()->add(pages, event.get()));
  }

  pool_geometry l1_{shape, host_layout::layer_first, pool_pages};
  pool_geometry l2_{shape, host_layout::page_first, pool_pages};
  std::unique_ptr<device_memory> l1_memory_;
  std::unique_ptr<device_memory> l2_memory_;
  device_layers layers_;
  std::unique_ptr<page_mover> mover_;
};

int current() {
  auto device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

/// The device on which this one's memory lies.
int device_of(device& chosen) {
  const auto memory = chosen.allocate(4096);
  EXPECT_TRUE(memory);
  return fake_cuda::device_of((*memory)->data());
}

} // namespace

// -- which device -------------------------------------------------------------

TEST_F(StreamOrderTest, ARankUsesTheDeviceOfItsNumberOnTheMachine) {
  setenv(local_rank_name, "3", 1);
  EXPECT_EQ(device_of(**make_cuda_device()), 3);
  setenv(local_rank_name, "6", 1);
  EXPECT_EQ(device_of(**make_cuda_device()), 2);
}

TEST_F(StreamOrderTest, WithoutMpiTorchrunNumbersTheRanksOfAMachine) {
  setenv(torchrun_name, "1", 1);
  EXPECT_EQ(device_of(**make_cuda_device()), 1);
  setenv(local_rank_name, "3", 1);
  EXPECT_EQ(device_of(**make_cuda_device()), 3);
}

TEST_F(StreamOrderTest, ANamedDeviceComesBeforeTheRanksNumber) {
  setenv(local_rank_name, "3", 1);
  EXPECT_EQ(device_of(**make_cuda_device(1)), 1);
  const auto missing = make_cuda_device(4);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ec::invalid_argument);
  EXPECT_THAT(missing.error().detail, HasSubstr("expected 0 to 3"));
}

TEST_F(StreamOrderTest, TheEnginesPoolSaysWhichDevice) {
  setenv(local_rank_name, "3", 1);
  const auto pool = std::move(*allocate_cuda_memory(2, 4096, "engine"));
  const auto address = reinterpret_cast<uint64_t>(pool->data()) + 64;
  EXPECT_EQ(device_of(**make_cuda_device({}, address)), 2);
  EXPECT_EQ(make_cuda_device(1, address).error().code, ec::invalid_argument);
  EXPECT_TRUE(make_cuda_device(2, address));
}

TEST_F(StreamOrderTest, ChoicesOfSettingsReachTheDevice) {
  EXPECT_EQ(device_of(**make_device(*parse_device_choice("cuda:2"))), 2);
  // Naming a device that is not there is no reason to go on without one.
  EXPECT_EQ(make_device(*parse_device_choice("cuda:9")).error().code, ec::invalid_argument);
}

TEST_F(StreamOrderTest, WithoutANumberTheEnginesCurrentDeviceIsUsed) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(device_of(**make_cuda_device()), 1);
}

TEST_F(StreamOrderTest, TheCallersCurrentDeviceNeverChanges) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  for (const auto io : {io_backend::direct, io_backend::kernel}) {
    const auto chosen = std::move(*make_cuda_device(3));
    auto l1 = std::move(*chosen->allocate(l1_.total_bytes()));
    auto l2 = std::move(*chosen->allocate_host(l2_.total_bytes(), {}));
    EXPECT_EQ(current(), 1);
    auto byte = std::array<std::byte, 4>{};
    EXPECT_TRUE(l1->write(0, byte));
    EXPECT_TRUE(l1->read(0, byte));
    EXPECT_EQ(current(), 1);
    {
      auto copies = chosen->make_copy_engine(
        device_layers::of(l1_, reinterpret_cast<uint64_t>(l1->data())), l2_, *l2, {.io = io});
      ASSERT_TRUE(copies) << to_string(copies.error());
      EXPECT_EQ(current(), 1);
      EXPECT_THAT(fake_cuda::stream_devices(), Each(3));
      (*copies)->store({{1, list({1}), list({2})}}, [](auto, const auto& done) {
        EXPECT_TRUE(done) << to_string(done.error());
      });
      (*copies)->drain();
    }
    EXPECT_EQ(current(), 1);
  }
}

// -- copies wait for the engine -----------------------------------------------

TEST_F(StreamOrderTest, AMissingEventIsNoticed) {
  make();
  const auto engine = engine_stream{};
  write(engine, 1);
  begin(copy_direction::store, 0, 1, 1);
  EXPECT_THAT(fake_cuda::races(), Not(IsEmpty()));
}

TEST_F(StreamOrderTest, AStoreWaitsUntilThePagesAreComplete) {
  make();
  const auto engine = engine_stream{};
  write(engine, 1);
  fence(1, engine.mark());
  begin(copy_direction::store, 0, 1, 1);
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
}

TEST_F(StreamOrderTest, ALoadWaitsForTheKernelsThatStillReadThePage) {
  make();
  const auto first = engine_stream{};
  const auto second = engine_stream{};
  read(first, 1);
  fence(1, first.mark());
  read(second, 1);
  fence(1, second.mark());
  begin(copy_direction::load, 0, 1, 1);
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
}

TEST_F(StreamOrderTest, CopiesOfOtherPagesDoNotWait) {
  make();
  const auto engine = engine_stream{};
  write(engine, 1);
  fence(1, engine.mark());
  begin(copy_direction::load, 0, 2, 2);
  // Had the load waited for page 1, the kernel below could not contradict it.
  auto* const loads_are_behind = static_cast<cudaEvent_t>(mover_->layer_events(0)[1]);
  const auto other = engine_stream{};
  ASSERT_EQ(cudaStreamWaitEvent(other.stream, loads_are_behind, 0), cudaSuccess);
  read(other, 1);
  EXPECT_THAT(fake_cuda::races(), Not(IsEmpty()));
}

TEST_F(StreamOrderTest, AnEventIsFreeOnceItIsAdded) {
  make();
  const auto engine = engine_stream{};
  write(engine, 1);
  {
    const auto event = engine.mark();
    fence(1, event);
  }
  write(engine, 2);
  begin(copy_direction::store, 0, 1, 1);
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
}

TEST_F(StreamOrderTest, MoreEventsThanAreKeptApartStillCount) {
  make();
  const auto engine = engine_stream{};
  for (auto i = 0; i < 3000; ++i) {
    if (i > 2900)
      write(engine, static_cast<page_index>(i % pool_pages));
    fence(static_cast<page_index>(i % pool_pages), engine.mark());
  }
  for (auto page = page_index{1}; page < pool_pages; ++page) {
    begin(copy_direction::store, 0, page, page);
    finish(copy_direction::store, 0);
  }
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
}

// -- the engine waits for copies ----------------------------------------------

TEST_F(StreamOrderTest, TheEnginesStreamWaitsLayerByLayer) {
  make();
  const auto chosen = std::move(*make_cuda_device(0));
  const auto engine = engine_stream{};
  begin(copy_direction::load, 0, 1, 1);
  auto progress = layer_progress{shape.layers};
  progress.queue(mover_->layer_events(0));
  ASSERT_TRUE(chosen->wait_for_layer(progress, engine.stream, 0));
  read(engine, 1, 0);
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
  read(engine, 1, 1);
  EXPECT_THAT(fake_cuda::races(), Not(IsEmpty())) << "layer 1 was not waited for";
}

TEST_F(StreamOrderTest, EventsForGraphsStandForTheNewestLoad) {
  make();
  const auto engine = engine_stream{};
  const auto events = mover_->layer_events();
  for (auto set = uint32_t{0}; set < copy_sets; ++set) {
    begin(copy_direction::load, set, set + 1, set + 1);
    EXPECT_EQ(mover_->layer_events(), events);
    for (auto layer = uint32_t{0}; layer < shape.layers; ++layer) {
      ASSERT_EQ(cudaStreamWaitEvent(engine.stream, static_cast<cudaEvent_t>(events[layer]),
                                    cudaEventWaitExternal),
                cudaSuccess);
      read(engine, set + 1, layer);
    }
  }
  EXPECT_THAT(fake_cuda::races(), IsEmpty());
}

TEST_F(StreamOrderTest, AnEngineThatPassesEventsNeverRaces) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  for (const auto method : {cuda_copy_method::batched, cuda_copy_method::single,
                            cuda_copy_method::words, cuda_copy_method::bulk}) {
    make(method);
    const auto engine = std::array<engine_stream, 2>{};
    for (auto turn = 0; turn < 200; ++turn) {
      const auto page = static_cast<page_index>(1 + random() % (pool_pages - 1));
      const auto& stream = engine[random() % 2];
      // An engine orders its own streams.
      const auto& other = engine[0].stream == stream.stream ? engine[1] : engine[0];
      const auto own = other.mark();
      ASSERT_EQ(cudaStreamWaitEvent(stream.stream, own.get(), 0), cudaSuccess);
      if (random() % 2 == 0) {
        write(stream, page); // Computed, inserted, copied to L2.
        fence(page, stream.mark());
        begin(copy_direction::store, 0, page, page);
        finish(copy_direction::store, 0);
      } else {
        begin(copy_direction::load, 0, page, page); // Loaded, read, released.
        const auto events = mover_->layer_events(0);
        for (auto layer = uint32_t{0}; layer < shape.layers; ++layer) {
          ASSERT_EQ(cudaStreamWaitEvent(stream.stream, static_cast<cudaEvent_t>(events[layer]), 0),
                    cudaSuccess);
          read(stream, page, layer);
        }
        fence(page, stream.mark());
        finish(copy_direction::load, 0);
      }
    }
    EXPECT_THAT(fake_cuda::races(), IsEmpty());
    mover_.reset();
    l1_memory_.reset();
    l2_memory_.reset();
  }
}

// -- copies fail --------------------------------------------------------------

TEST_F(StreamOrderTest, ACopyThatCannotBeQueuedIsNoLostDevice) {
  make();
  fake_cuda::fail_copies(1);
  const auto page = std::array{page_index{1}};
  EXPECT_EQ(mover_->begin(copy_direction::store, 0, page, page).error().code, ec::copy_failed);
  begin(copy_direction::store, 0, 1, 1);
  finish(copy_direction::store, 0);
}

TEST_F(StreamOrderTest, ADeviceThatAnswersNothingIsLost) {
  make(cuda_copy_method::words);
  begin(copy_direction::load, 0, 1, 1);
  fake_cuda::lose_device();
  const auto arrived = mover_->finish_layer(copy_direction::load, 0, 0);
  ASSERT_FALSE(arrived);
  EXPECT_EQ(arrived.error().code, ec::device_lost);
}

} // namespace hicache
