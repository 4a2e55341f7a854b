// What the kernel says of memory, told by files of the test's own.

#include "base/units.hpp"
#include "gpu/available_memory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace hicache {
namespace {

using namespace literals;

/// A machine with 64 GiB available, as its files describe it.
class AvailableMemoryTest : public testing::Test {
protected:
  AvailableMemoryTest() {
    auto name = (std::filesystem::temp_directory_path() / "hicache-memory-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    write("proc/meminfo", "MemTotal:       134217728 kB\nMemFree:        1048576 kB\n"
                          "MemAvailable:   67108864 kB\n");
  }

  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

  void write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path} << text;
  }

  void write_v2(const std::string& group, const std::string& max, const std::string& high,
                uint64_t current, uint64_t files) {
    const auto folder = std::filesystem::path{"sys/fs/cgroup" + group};
    write(folder / "memory.max", max + "\n");
    write(folder / "memory.high", high + "\n");
    write(folder / "memory.current", std::to_string(current) + "\n");
    write(folder / "memory.stat", "anon 5\nfile 7\ninactive_file " + std::to_string(files / 2)
                                    + "\nactive_file " + std::to_string(files / 2) + "\n");
  }

  void write_v1(const std::string& group, uint64_t limit, uint64_t usage, uint64_t files) {
    const auto folder = std::filesystem::path{"sys/fs/cgroup/memory" + group};
    write(folder / "memory.limit_in_bytes", std::to_string(limit) + "\n");
    write(folder / "memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(folder / "memory.stat", "cache 7\nactive_file 1\ntotal_inactive_file "
                                    + std::to_string(files / 2) + "\ntotal_active_file "
                                    + std::to_string(files / 2) + "\n");
  }

  static std::string text(uint64_t bytes) { return std::to_string(bytes); }

  std::filesystem::path root_;
};

TEST_F(AvailableMemoryTest, IsWhatTheMachineHasWhereNoGroupSetsALimit) {
  EXPECT_EQ(available_memory(root_), 64_GiB);
  write("proc/self/cgroup", "0::/user.slice\n");
  write_v2("/user.slice", "max", "max", 3_GiB, 0);
  EXPECT_EQ(available_memory(root_), 64_GiB);
  write("proc/self/cgroup", "4:cpu,memory:/job\n0::/\n");
  write_v1("", 9223372036854771712u, 100_GiB, 0);
  EXPECT_EQ(available_memory(root_), 64_GiB);
}

TEST_F(AvailableMemoryTest, IsWhatAContainersLimitLeaves) {
  write("proc/self/cgroup", "0::/\n");
  write_v2("", text(16_GiB), "max", 5_GiB, 1_GiB);
  EXPECT_EQ(available_memory(root_), 12_GiB);
  write_v2("", text(16_GiB), text(10_GiB), 5_GiB, 1_GiB);
  EXPECT_EQ(available_memory(root_), 6_GiB);
  write_v2("", text(4_GiB), "max", 5_GiB, 0);
  EXPECT_EQ(available_memory(root_), 0u);
}

TEST_F(AvailableMemoryTest, IsWhatTheTightestOfTheGroupsAroundLeaves) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write_v2("/pod/container", text(32_GiB), "max", 2_GiB, 0);
  write_v2("/pod", text(20_GiB), "max", 12_GiB, 2_GiB);
  EXPECT_EQ(available_memory(root_), 10_GiB);
  write_v2("/pod/container", text(8_GiB), "max", 2_GiB, 0);
  EXPECT_EQ(available_memory(root_), 6_GiB);
}

TEST_F(AvailableMemoryTest, KnowsTheFirstVersionOfControlGroups) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/1234\n0::/\n");
  write_v1("/docker/1234", 16_GiB, 6_GiB, 2_GiB);
  EXPECT_EQ(available_memory(root_), 12_GiB);
}

TEST_F(AvailableMemoryTest, IsFoundAtTheMountWhereOnlyTheHostKnowsTheGroupsName) {
  write("proc/self/cgroup", "4:memory:/docker/1234\n");
  write_v1("", 16_GiB, 6_GiB, 2_GiB);
  EXPECT_EQ(available_memory(root_), 12_GiB);
}

TEST_F(AvailableMemoryTest, IsUnknownWhereTheKernelSaysNothing) {
  std::filesystem::remove(root_ / "proc/meminfo");
  EXPECT_EQ(available_memory(root_), std::nullopt);
  write("proc/self/cgroup", "0::/\n");
  write_v2("", text(16_GiB), "max", 4_GiB, 0);
  EXPECT_EQ(available_memory(root_), 12_GiB);
}

} // namespace
} // namespace hicache
