#include "gpu/cuda_device.hpp"
#include "gpu/cuda_memory.hpp"
#include "gpu/cuda_mover.hpp"
#include "gpu/host_device.hpp"
#include "gpu/host_memory.hpp"
#include "gpu/mover_proof.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <random>
#include <set>

namespace hicache {
namespace {

using testing::HasSubstr;

constexpr auto all_layouts = std::array{host_layout::layer_first, host_layout::page_first,
                                        host_layout::page_first_direct, host_layout::page_head};

constexpr auto all_methods = std::array{cuda_copy_method::batched, cuda_copy_method::single,
                                        cuda_copy_method::bulk, cuda_copy_method::words};

std::vector<std::byte> random_bytes(uint64_t count, std::mt19937_64& random) {
  auto bytes = std::vector<std::byte>(count);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

std::vector<std::byte> contents(const device_memory& memory, uint64_t offset, uint64_t bytes) {
  auto read = std::vector<std::byte>(bytes);
  EXPECT_TRUE(memory.read(offset, read));
  return read;
}

// -- without a GPU ------------------------------------------------------------

TEST(CudaShareTest, TextGivesBackTheHandleAndTheSize) {
  auto share = cuda_share{};
  for (auto i = size_t{0}; i < sizeof(share.handle.reserved); ++i)
    share.handle.reserved[i] = static_cast<char>(i * 37);
  share.bytes = uint64_t{80} << 30;
  const auto text = to_string(share);
  EXPECT_EQ(text.substr(0, 15), "cuda-ipc 00254a");
  EXPECT_EQ(text.substr(9 + 128), " 85899345920");
  const auto read = parse_cuda_share(text);
  ASSERT_TRUE(read);
  EXPECT_TRUE(std::ranges::equal(read->handle.reserved, share.handle.reserved));
  EXPECT_EQ(read->bytes, share.bytes);
}

TEST(CudaShareTest, RefusesEveryOtherTextWithASentence) {
  const auto handle = std::string(128, 'a');
  EXPECT_TRUE(parse_cuda_share("cuda-ipc " + handle + " 1"));
  for (const auto& text :
       {std::string{}, std::string{"cuda-ipc"}, "cuda-ipc " + handle, "cuda-ipc " + handle + " ",
        "cuda-ipc " + handle + " 0", "cuda-ipc " + handle + " 01", "cuda-ipc " + handle + " +1",
        "cuda-ipc " + handle + " -1", "cuda-ipc " + handle + " 1 ", "cuda-ipc " + handle + " 1x",
        "cuda-ipc " + handle + "  1", "cuda-ipc " + handle + " 18446744073709551616",
        "cuda-ipc " + handle + "a 1", "cuda-ipc " + handle.substr(1) + " 1",
        "cuda-ipc " + handle.substr(1) + "A 1", "cuda-ipc " + handle.substr(1) + "g 1",
        "cuda-ipc  " + handle.substr(1) + " 1", " cuda-ipc " + handle + " 1",
        "memory " + handle + " 1"}) {
    const auto read = parse_cuda_share(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code, ec::invalid_argument);
    EXPECT_THAT(read.error().detail, HasSubstr("'" + text + "' names no memory"));
    EXPECT_THAT(read.error().detail, HasSubstr("expected 'cuda-ipc', a handle of 128"));
  }
}

constexpr auto small_shape = pool_shape{attention_kind::mha, 2, 2, 4, 6, 2, 4, 0};

/// The host device's mover with a fault of one byte in one direction.
class faulty_mover final : public page_mover {
public:
  faulty_mover(std::unique_ptr<page_mover> sound, copy_direction broken, std::byte* victim)
    : sound_(std::move(sound)), broken_(broken), victim_(victim) {}

  result<void> begin(copy_direction direction, uint32_t set, std::span<const page_index> l1_pages,
                     std::span<const page_index> l2_pages) override {
    return sound_->begin(direction, set, l1_pages, l2_pages);
  }

  result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) override {
    auto done = sound_->finish_layer(direction, set, layer);
    if (direction == broken_ && victim_ != nullptr)
      *victim_ ^= std::byte{1};
    victim_ = nullptr;
    return done;
  }

private:
  std::unique_ptr<page_mover> sound_;
  copy_direction broken_;
  std::byte* victim_;
};

class MoverProofTest : public testing::TestWithParam<host_layout> {
protected:
  pool_geometry l1_{small_shape, host_layout::layer_first, 4};
  pool_geometry l2_{small_shape, GetParam(), 4};
  std::unique_ptr<device_memory> l1_memory_ = allocate_host_memory(l1_.total_bytes(), {}).value();
  std::unique_ptr<device_memory> l2_memory_ = allocate_host_memory(l2_.total_bytes(), {}).value();
  std::unique_ptr<page_mover> mover_
    = make_host_mover(device_layers::of(l1_, reinterpret_cast<uint64_t>(l1_memory_->data())), l2_,
                      l2_memory_->data(), {.inline_copies = true});
};

TEST_P(MoverProofTest, AcceptsAMoverThatCopies) {
  const auto proven = prove_mover(*mover_, l1_, *l1_memory_, l2_, *l2_memory_);
  EXPECT_TRUE(proven) << proven.error().detail;
}

TEST_P(MoverProofTest, FindsOneWrongBitAnywhere) {
  // The padding page and the source of the copy count too.
  for (const auto& victim : {l1_memory_->data(), l1_memory_->data() + l1_.total_bytes() - 1,
                             l2_memory_->data(), l2_memory_->data() + l2_.total_bytes() / 2}) {
    auto mover = faulty_mover{
      make_host_mover(device_layers::of(l1_, reinterpret_cast<uint64_t>(l1_memory_->data())), l2_,
                      l2_memory_->data(), {.inline_copies = true}),
      copy_direction::store, victim};
    const auto proven = prove_mover(mover, l1_, *l1_memory_, l2_, *l2_memory_);
    ASSERT_FALSE(proven);
    EXPECT_EQ(proven.error().code, ec::copy_failed);
    EXPECT_THAT(proven.error().detail, HasSubstr("a store of three pages"));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MoverProofTest, testing::ValuesIn(all_layouts),
                         [](const auto& chosen) { return std::string{to_string(chosen.param)}; });

// -- with a GPU ---------------------------------------------------------------

class CudaDeviceTest : public testing::Test {
protected:
  void SetUp() override {
    auto made = make_cuda_device(0);
    if (!made)
      GTEST_SKIP() << made.error().detail;
    device_ = std::move(*made);
  }

  /// Random bytes, so that what is not written shows.
  std::unique_ptr<device_memory> poisoned(result<std::unique_ptr<device_memory>> memory) {
    auto& bytes = memory.value();
    EXPECT_TRUE(bytes->write(0, random_bytes(bytes->size(), random_)));
    return std::move(bytes);
  }

  std::mt19937_64 random_{7};
  std::unique_ptr<device> device_;
};

TEST_F(CudaDeviceTest, DeviceMemoryStartsZeroed) {
  for (const auto bytes : {uint64_t{1}, uint64_t{3} << 20}) {
    {
      // Freed at once, so that the next allocation is likely to get the same bytes.
      const auto before = poisoned(device_->allocate(bytes));
    }
    const auto memory = device_->allocate(bytes);
    ASSERT_TRUE(memory) << memory.error().detail;
    EXPECT_EQ((*memory)->size(), bytes);
    EXPECT_EQ(contents(**memory, 0, bytes), std::vector<std::byte>(bytes));
    EXPECT_THAT((*memory)->description(), HasSubstr(device_->name()));
  }
}

TEST_F(CudaDeviceTest, HostMemoryIsPinnedAndCannotBeShared) {
  const auto memory = device_->allocate_host(uint64_t{5} << 20, {});
  ASSERT_TRUE(memory) << memory.error().detail;
  EXPECT_EQ(contents(**memory, 0, 4096), std::vector<std::byte>(4096));
  EXPECT_THAT((*memory)->description(), HasSubstr(", pinned"));
  EXPECT_EQ((*memory)->share().error().code, ec::unsupported);
  auto kind = cudaPointerAttributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&kind, (*memory)->data()), cudaSuccess);
  EXPECT_EQ(kind.type, cudaMemoryTypeHost);
  EXPECT_EQ(kind.devicePointer, (*memory)->data());
}

TEST_F(CudaDeviceTest, RefusesTextsThatNameNoCudaMemory) {
  EXPECT_EQ(device_->open("memory /proc/1/fd/3 4096").error().code, ec::invalid_argument);
  // Well-formed, but nobody's handle.
  EXPECT_EQ(device_->open("cuda-ipc " + std::string(128, '0') + " 4096").error().code,
            ec::io_failure);
}

constexpr auto shared_variable = "HICACHE_TEST_SHARED_MEMORY";
constexpr auto shared_bytes = uint64_t{3} << 20;

TEST_F(CudaDeviceTest, TheOtherProcessOfTheTestBelow) {
  const auto* const text = std::getenv(shared_variable);
  if (text == nullptr)
    GTEST_SKIP() << "runs in a process that another test starts";
  const auto memory = device_->open(text);
  ASSERT_TRUE(memory) << memory.error().detail;
  EXPECT_EQ((*memory)->size(), shared_bytes);
  EXPECT_EQ((*memory)->share().error().code, ec::unsupported);
  auto bytes = contents(**memory, 0, shared_bytes);
  for (auto& byte : bytes)
    byte ^= std::byte{0xff};
  EXPECT_TRUE((*memory)->write(0, bytes));
}

TEST_F(CudaDeviceTest, AnotherProcessReadsAndWritesSharedMemory) {
  if (std::getenv(shared_variable) != nullptr)
    GTEST_SKIP() << "this is the other process";
  auto memory = poisoned(device_->allocate(shared_bytes));
  auto expected = contents(*memory, 0, shared_bytes);
  for (auto& byte : expected)
    byte ^= std::byte{0xff};
  const auto text = memory->share();
  ASSERT_TRUE(text) << text.error().detail;
  ASSERT_EQ(setenv(shared_variable, text->c_str(), 1), 0);
  auto program = std::string{"/proc/self/exe"};
  auto filter = std::string{"--gtest_filter=CudaDeviceTest.TheOtherProcessOfTheTestBelow"};
  auto arguments = std::array<char*, 3>{program.data(), filter.data(), nullptr};
  auto process = pid_t{0};
  ASSERT_EQ(posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  ASSERT_EQ(unsetenv(shared_variable), 0);
  auto status = -1;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(contents(*memory, 0, shared_bytes) == expected);
}

/// An L1 and an L2 pool with random bytes.
struct cuda_pools {
  pool_geometry l1;
  pool_geometry l2;
  std::unique_ptr<device_memory> l1_memory;
  std::unique_ptr<device_memory> l2_memory;

  device_layers layers() const {
    return device_layers::of(l1, reinterpret_cast<uint64_t>(l1_memory->data()));
  }
};

/// Copies one page of a pool's image to a page of another's. Both layouts keep one layer of a page
/// together.
void copy_page(const pool_geometry& from_pool, const std::vector<std::byte>& from,
               page_index from_page, const pool_geometry& to_pool, std::vector<std::byte>& to,
               page_index to_page) {
  for (const auto part : from_pool.parts())
    for (auto layer = uint32_t{0}; layer < from_pool.shape().layers; ++layer) {
      const auto source = from_pool.rows(layer, part, from_page);
      const auto target = to_pool.rows(layer, part, to_page);
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(source.offset),
                  source.rows * source.row_bytes,
                  to.begin() + static_cast<ptrdiff_t>(target.offset));
    }
}

page_list pages_of(std::vector<page_index> list) {
  return std::make_shared<const std::vector<page_index>>(std::move(list));
}

class CudaCopyTest : public CudaDeviceTest {
protected:
  cuda_pools pools(const pool_shape& shape, host_layout layout, uint32_t pages) {
    auto made = cuda_pools{pool_geometry{shape, host_layout::layer_first, pages},
                           pool_geometry{shape, layout, pages},
                           {},
                           {}};
    made.l1_memory = poisoned(device_->allocate(made.l1.total_bytes()));
    made.l2_memory = poisoned(device_->allocate_host(made.l2.total_bytes(), {}));
    return made;
  }
};

// Words of 16, 8, 4, 2 and 1 bytes; rows shorter and longer than a piece; rows of different lengths
// that one warp copies after each other; MLA; an index key.
constexpr auto all_shapes = std::array{
  pool_shape{attention_kind::mha, 2, 2, 64, 64, 2, 16, 0},
  pool_shape{attention_kind::mha, 1, 8, 128, 128, 2, 64, 0},
  pool_shape{attention_kind::mha, 3, 3, 20, 12, 2, 4, 0},
  pool_shape{attention_kind::mha, 2, 1, 6, 10, 2, 3, 0},
  pool_shape{attention_kind::mha, 2, 1, 5, 7, 1, 3, 0},
  pool_shape{attention_kind::mha, 2, 3, 1, 2, 2, 1, 0},
  pool_shape{attention_kind::mha, 2, 1, 3000, 5000, 2, 2, 0},
  pool_shape{attention_kind::mha, 2, 1, 8, 16, 2, 3000, 0},
  pool_shape{attention_kind::mla, 3, 1, 576, 0, 2, 64, 0},
  pool_shape{attention_kind::nsa, 3, 1, 576, 0, 2, 64, 132},
};

TEST_F(CudaCopyTest, EveryMethodCopiesEveryShapeAndLayout) {
  for (const auto method : all_methods)
    for (const auto& shape : all_shapes)
      for (const auto layout : all_layouts) {
        SCOPED_TRACE(std::string{to_string(method)} + " " + to_string(layout) + " "
                     + to_string(shape));
        auto made = pools(shape, layout, 4);
        auto mover
          = make_cuda_mover(0, made.layers(), made.l2, made.l2_memory->data(), {.sms = 2}, method);
        if (!mover && mover.error().code == ec::unsupported)
          continue;
        ASSERT_TRUE(mover) << mover.error().detail;
        const auto proven
          = prove_mover(**mover, made.l1, *made.l1_memory, made.l2, *made.l2_memory);
        EXPECT_TRUE(proven) << proven.error().detail;
      }
}

TEST_F(CudaCopyTest, TheWaysThatEveryGpuHasCanBeMade) {
  const auto made = pools(small_shape, host_layout::page_first, 4);
  for (const auto method : {cuda_copy_method::single, cuda_copy_method::words})
    EXPECT_TRUE(make_cuda_mover(0, made.layers(), made.l2, made.l2_memory->data(), {}, method));
}

TEST_F(CudaCopyTest, EveryLayerOfEverySetHasAnEventOfItsOwn) {
  const auto made = pools(small_shape, host_layout::page_first, 4);
  const auto mover = make_cuda_mover(0, made.layers(), made.l2, made.l2_memory->data(), {},
                                     cuda_copy_method::single);
  ASSERT_TRUE(mover) << mover.error().detail;
  auto events = std::set<void*>{};
  for (auto set = uint32_t{0}; set < copy_sets; ++set)
    for (auto* const event : (*mover)->layer_events(set))
      events.insert(event);
  EXPECT_EQ(events.size(), size_t{copy_sets} * small_shape.layers);
  EXPECT_FALSE(events.contains(nullptr));
}

TEST_F(CudaCopyTest, BulkCopiesAreOfferedFromHopperOn) {
  auto major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  const auto made = pools(small_shape, host_layout::page_first, 4);
  const auto mover = make_cuda_mover(0, made.layers(), made.l2, made.l2_memory->data(), {},
                                     cuda_copy_method::bulk);
  EXPECT_EQ(mover.has_value(), major >= 9);
}

TEST_F(CudaCopyTest, KernelsNeedAsManySmsAsTheGpuHas) {
  auto made = pools(small_shape, host_layout::page_first, 4);
  for (const auto sms : {0u, 100000u}) {
    const auto engine = device_->make_copy_engine(made.layers(), made.l2, *made.l2_memory,
                                                  {.io = io_backend::kernel, .sms = sms});
    ASSERT_FALSE(engine);
    EXPECT_EQ(engine.error().code, ec::unsupported);
    EXPECT_THAT(engine.error().detail, HasSubstr("SMs; expected 1 to"));
  }
}

class CudaEngineTest : public CudaCopyTest, public testing::WithParamInterface<io_backend> {
protected:
  std::unique_ptr<copy_engine> engine(cuda_pools& of) {
    auto made = device_->make_copy_engine(of.layers(), of.l2, *of.l2_memory, {.io = GetParam()});
    EXPECT_TRUE(made) << made.error().detail;
    return made ? std::move(*made) : nullptr;
  }
};

/// Pages of 2 MiB: the copy of many takes far longer than queueing it.
constexpr auto large_shape = pool_shape{attention_kind::mha, 16, 8, 128, 128, 2, 32, 0};

// Each layer of L1 is copied away as soon as its event lets it, on a stream of its own, so that no
// other layer's event helps.
TEST_P(CudaEngineTest, AStreamBehindTheEventOfALayerSeesTheLayer) {
  constexpr auto pages = uint32_t{65};
  auto made = pools(large_shape, host_layout::page_first_direct, pages);
  const auto copies = engine(made);
  ASSERT_NE(copies, nullptr);
  auto list = std::vector<page_index>(pages - 1);
  std::iota(list.begin(), list.end(), 1);
  auto expected = contents(*made.l1_memory, 0, made.l1.total_bytes());
  const auto l2_image = contents(*made.l2_memory, 0, made.l2.total_bytes());
  for (const auto page : list)
    copy_page(made.l2, l2_image, pages - page, made.l1, expected, page);
  const auto seen = device_->allocate(made.l1.total_bytes());
  ASSERT_TRUE(seen) << seen.error().detail;
  auto streams = std::array<cudaStream_t, large_shape.layers>{};
  for (auto& stream : streams)
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);

  const auto progress = std::make_shared<layer_progress>(large_shape.layers);
  copies->load(
    {{1, pages_of({list.rbegin(), list.rend()}), pages_of(list), progress}},
    [](operation_id, const result<void>& done) { EXPECT_TRUE(done) << done.error().detail; });
  for (auto layer = uint32_t{0}; layer < large_shape.layers; ++layer) {
    if (auto* const event = progress->event(layer); event != nullptr) {
      ASSERT_EQ(cudaStreamWaitEvent(streams[layer], static_cast<cudaEvent_t>(event), 0),
                cudaSuccess);
    }
    for (const auto part : made.l1.parts()) {
      const auto offset = made.l1.rows(layer, part, 0).offset;
      ASSERT_EQ(cudaMemcpyAsync((*seen)->data() + offset, made.l1_memory->data() + offset,
                                made.l1.page_stride(part) * pages, cudaMemcpyDeviceToDevice,
                                streams[layer]),
                cudaSuccess);
    }
  }
  for (auto* const stream : streams) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  EXPECT_FALSE(progress->failed());
  EXPECT_TRUE(contents(**seen, 0, (*seen)->size()) == expected);
  copies->drain();
}

// More submissions than there are sets, in both directions at the same time.
TEST_P(CudaEngineTest, StoresAndLoadsRunBesideEachOther) {
  constexpr auto pages = uint32_t{33};
  constexpr auto half = uint32_t{16};
  auto made = pools(large_shape, host_layout::page_first_direct, pages);
  const auto copies = engine(made);
  ASSERT_NE(copies, nullptr);
  auto l1_image = contents(*made.l1_memory, 0, made.l1.total_bytes());
  auto l2_image = contents(*made.l2_memory, 0, made.l2.total_bytes());
  auto reported = std::array<std::vector<operation_id>, 2>{};
  const auto report_to = [&](size_t which) {
    return [&, which](operation_id id, const result<void>& done) {
      EXPECT_TRUE(done) << done.error().detail;
      reported[which].push_back(id);
    };
  };
  auto ids = std::vector<operation_id>{};
  // The first half of the pages goes down, the second half up, two at a time.
  for (auto page = page_index{1}; page <= half; page += 2) {
    const auto id = operation_id{page};
    ids.push_back(id);
    copies->store({{id, pages_of({page, page + 1}), pages_of({page + 1, page})}}, report_to(0));
    copies->load(
      {{id, pages_of({half + page, half + page + 1}), pages_of({half + page + 1, half + page}),
        std::make_shared<layer_progress>(large_shape.layers)}},
      report_to(1));
  }
  copies->drain();
  for (auto page = page_index{1}; page <= half; page += 2)
    for (const auto& [from, to] : {std::pair{page, page + 1}, std::pair{page + 1, page}}) {
      copy_page(made.l1, l1_image, from, made.l2, l2_image, to);
      copy_page(made.l2, l2_image, half + from, made.l1, l1_image, half + to);
    }
  EXPECT_EQ(reported[0], ids);
  EXPECT_EQ(reported[1], ids);
  EXPECT_TRUE(contents(*made.l1_memory, 0, l1_image.size()) == l1_image);
  EXPECT_TRUE(contents(*made.l2_memory, 0, l2_image.size()) == l2_image);
}

// More runs than a batch takes, and more pieces than a kernel has warps.
TEST_P(CudaEngineTest, ThousandsOfScatteredPagesMoveInOneSubmission) {
  constexpr auto pages = uint32_t{3001};
  auto made = pools(small_shape, host_layout::page_first_direct, pages);
  const auto copies = engine(made);
  ASSERT_NE(copies, nullptr);
  auto from = std::vector<page_index>(pages - 1);
  std::iota(from.begin(), from.end(), 1);
  auto to = from;
  std::shuffle(from.begin(), from.end(), random_);
  std::shuffle(to.begin(), to.end(), random_);
  auto expected = contents(*made.l2_memory, 0, made.l2.total_bytes());
  const auto l1_image = contents(*made.l1_memory, 0, made.l1.total_bytes());
  for (auto i = size_t{0}; i < from.size(); ++i)
    copy_page(made.l1, l1_image, from[i], made.l2, expected, to[i]);
  copies->store({{1, pages_of(from), pages_of(to)}}, [](operation_id, const result<void>& done) {
    EXPECT_TRUE(done) << done.error().detail;
  });
  copies->drain();
  EXPECT_TRUE(contents(*made.l2_memory, 0, expected.size()) == expected);
}

INSTANTIATE_TEST_SUITE_P(Io, CudaEngineTest,
                         testing::Values(io_backend::direct, io_backend::kernel),
                         [](const auto& chosen) { return std::string{to_string(chosen.param)}; });

} // namespace
} // namespace hicache
