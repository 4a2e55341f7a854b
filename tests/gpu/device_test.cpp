#include "gpu/device.hpp"
#include "tests/gpu/reference_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hicache {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(DeviceTest, ReadsEveryKindByItsName) {
  for (const auto kind : {device_kind::automatic, device_kind::cuda, device_kind::host})
    EXPECT_EQ(parse_device_kind(to_string(kind)), kind);
  const auto wrong = parse_device_kind("tpu");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ec::invalid_argument);
  EXPECT_THAT(wrong.error().detail,
              HasSubstr("'tpu' is not a device; expected auto, cuda or host"));
}

TEST(DeviceTest, AutomaticTakesCudaWhereItCanBeUsedAndElseTheHost) {
  const auto cuda = make_device(device_kind::cuda, copy_threads::none);
  const auto automatic = make_device(device_kind::automatic, copy_threads::none);
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

class DeviceMemoryTest : public testing::TestWithParam<device_kind> {
protected:
  void SetUp() override {
    auto made = make_device(GetParam(), copy_threads::none);
    if (!made)
      GTEST_SKIP() << made.error().detail;
    device_ = std::move(*made);
  }

  std::unique_ptr<device> device_;
};

TEST_P(DeviceMemoryTest, GivesBackWhatWasWritten) {
  auto random = std::mt19937_64{1};
  for (const auto allocate : {&device::allocate, &device::allocate_host}) {
    auto memory = (device_.get()->*allocate)(10000);
    ASSERT_TRUE(memory) << memory.error().detail;
    EXPECT_EQ((*memory)->size(), 10000u);
    EXPECT_NE((*memory)->data(), nullptr);
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

TEST_P(DeviceMemoryTest, RefusesMoreThanThereIsWithASentence) {
  for (const auto allocate : {&device::allocate, &device::allocate_host}) {
    const auto memory = (device_.get()->*allocate)(uint64_t{1} << 50);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ec::io_failure);
    // What was asked for, and what there is.
    EXPECT_THAT(memory.error().detail, HasSubstr("cannot"));
    EXPECT_THAT(memory.error().detail, HasSubstr("1.0 PiB"));
    EXPECT_THAT(memory.error().detail, AnyOf(HasSubstr("are available"), HasSubstr("are free")));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceMemoryTest,
                         testing::Values(device_kind::host, device_kind::cuda),
                         [](const auto& chosen) { return std::string{to_string(chosen.param)}; });

} // namespace
} // namespace hicache
