#include "gpu/device.hpp"
#include "tests/gpu/reference_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace hicache {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(DeviceTest, ReadsEveryKindByItsName) {
  for (const auto kind : {device_kind::automatic, device_kind::cuda, device_kind::host})
    EXPECT_EQ(parse_device_kind(to_string(kind)), kind);
  EXPECT_EQ(parse_device_choice("cuda:3"), (device_choice{device_kind::cuda, 3}));
  EXPECT_EQ(parse_device_choice("host"), device_choice{device_kind::host});
  for (const auto* text : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "host:1"})
    EXPECT_EQ(parse_device_choice(text).error().code, ec::invalid_argument);
  const auto wrong = parse_device_kind("tpu");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ec::invalid_argument);
  EXPECT_THAT(wrong.error().detail,
              HasSubstr("'tpu' is not a device; expected auto, cuda or host"));
}

TEST(DeviceTest, AutomaticTakesCudaWhereItCanBeUsedAndElseTheHost) {
  const auto cuda = make_device(device_kind::cuda);
  const auto automatic = make_device(device_kind::automatic);
  ASSERT_TRUE(automatic);
  if (cuda) {
    EXPECT_EQ((*automatic)->name(), (*cuda)->name());
    EXPECT_FALSE((*automatic)->host_addressable());
    return;
  }
  EXPECT_EQ(cuda.error().code, ec::unsupported);
  EXPECT_THAT(cuda.error().detail, HasSubstr("CUDA device"));
  EXPECT_EQ((*automatic)->name(), "host memory");
  EXPECT_TRUE((*automatic)->host_addressable());
}

TEST(DeviceTest, SharesL1MemoryOfTheHostByAText) {
  const auto host = make_device(device_kind::host);
  ASSERT_TRUE(host);
  auto owned = (*host)->allocate(10000);
  ASSERT_TRUE(owned) << owned.error().detail;
  const auto text = (*owned)->share();
  ASSERT_TRUE(text) << text.error().detail;
  auto opened = (*host)->open(*text);
  ASSERT_TRUE(opened) << opened.error().detail;
  EXPECT_EQ((*opened)->size(), 10000u);
  auto random = std::mt19937_64{2};
  const auto bytes = test::random_bytes(10000, random);
  ASSERT_TRUE((*opened)->write(0, bytes));
  auto seen = std::vector<std::byte>(10000);
  ASSERT_TRUE((*owned)->read(0, seen));
  EXPECT_EQ(seen, bytes);
  const auto again = (*opened)->share();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ec::unsupported);
}

class DeviceMemoryTest : public testing::TestWithParam<device_kind> {
protected:
  using allocated = result<std::unique_ptr<device_memory>>;

  void SetUp() override {
    auto made = make_device(GetParam());
    if (!made)
      GTEST_SKIP() << made.error().detail;
    device_ = std::move(*made);
  }

  /// L1 and L2 memory of a size.
  std::array<allocated, 2> allocate_both(uint64_t bytes) {
    return {device_->allocate(bytes), device_->allocate_host(bytes, {})};
  }

  std::unique_ptr<device> device_;
};

TEST_P(DeviceMemoryTest, GivesBackWhatWasWritten) {
  auto random = std::mt19937_64{1};
  for (auto& memory : allocate_both(10000)) {
    ASSERT_TRUE(memory) << memory.error().detail;
    EXPECT_EQ((*memory)->size(), 10000u);
    EXPECT_NE((*memory)->data(), nullptr);
    EXPECT_NE((*memory)->description(), "");
    const auto bytes = test::random_bytes(10000, random);
    const auto piece = test::random_bytes(100, random);
    ASSERT_TRUE((*memory)->write(0, bytes));
    ASSERT_TRUE((*memory)->write(9900, piece));
    auto begin = std::vector<std::byte>(9900);
    auto end = std::vector<std::byte>(100);
    ASSERT_TRUE((*memory)->read(0, begin));
    ASSERT_TRUE((*memory)->read(9900, end));
    EXPECT_TRUE(std::equal(begin.begin(), begin.end(), bytes.begin()));
    EXPECT_EQ(end, piece);
    EXPECT_TRUE((*memory)->write(10000, {}));
    EXPECT_DEATH(static_cast<void>((*memory)->write(9901, piece)), "check failed");
    EXPECT_DEATH(static_cast<void>((*memory)->read(~uint64_t{0}, end)), "check failed");
  }
}

TEST_P(DeviceMemoryTest, StartsWithZeroes) {
  for (auto& memory : allocate_both(10000)) {
    ASSERT_TRUE(memory) << memory.error().detail;
    auto seen = std::vector<std::byte>(10000, std::byte{1});
    ASSERT_TRUE((*memory)->read(0, seen));
    EXPECT_EQ(seen, std::vector<std::byte>(10000));
  }
}

TEST_P(DeviceMemoryTest, RefusesMoreThanThereIsWithASentence) {
  for (const auto& memory : allocate_both(uint64_t{1} << 50)) {
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ec::io_failure);
    // What was asked for, and what there is.
    EXPECT_THAT(memory.error().detail, HasSubstr("cannot allocate"));
    EXPECT_THAT(memory.error().detail, HasSubstr("1.0 PiB"));
    EXPECT_THAT(memory.error().detail, AnyOf(HasSubstr("are available"), HasSubstr("are free")));
  }
}

TEST_P(DeviceMemoryTest, AdoptsMemoryThatOthersMayMap) {
  constexpr auto size = size_t{3} << 20;
  auto* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(address, MAP_FAILED);
  const auto mapped = std::span{static_cast<std::byte*>(address), size};
  {
    // L2 begins behind other things.
    const auto part = mapped.subspan(4096, size - 3 * 4096 + 100);
    const auto memory = device_->adopt_host(part, {});
    ASSERT_TRUE(memory) << memory.error().detail;
    EXPECT_EQ((*memory)->data(), part.data());
    EXPECT_EQ((*memory)->size(), part.size());
    EXPECT_THAT((*memory)->description(), HasSubstr("shared plain pages"));
    EXPECT_EQ((*memory)->share().error().code, ec::unsupported);
    const auto bytes = std::vector<std::byte>(100, std::byte{7});
    ASSERT_TRUE((*memory)->write(part.size() - 100, bytes));
    EXPECT_TRUE(std::ranges::equal(part.last(100), bytes));
    EXPECT_EQ(part[part.size() - 101], std::byte{0});
    part[5] = std::byte{9};
    auto seen = std::vector<std::byte>(1);
    ASSERT_TRUE((*memory)->read(5, seen));
    EXPECT_EQ(seen[0], std::byte{9});
  }
  EXPECT_EQ(mapped[4096 + 5], std::byte{9}) << "it stays the caller's";
  ::munmap(address, size);
}

TEST_P(DeviceMemoryTest, KeepsL2ToItself) {
  const auto memory = device_->allocate_host(10000, {});
  ASSERT_TRUE(memory) << memory.error().detail;
  const auto shared = (*memory)->share();
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().code, ec::unsupported);
  EXPECT_NE(shared.error().detail, "");
}

TEST_P(DeviceMemoryTest, OpensOnlyTextsOfItsKind) {
  for (const auto* text : {"", "nonsense"}) {
    const auto opened = device_->open(text);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ec::invalid_argument);
    EXPECT_THAT(opened.error().detail, HasSubstr("'" + std::string{text} + "'"));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceMemoryTest,
                         testing::Values(device_kind::host, device_kind::cuda),
                         [](const auto& chosen) { return std::string{to_string(chosen.param)}; });

} // namespace
} // namespace hicache
