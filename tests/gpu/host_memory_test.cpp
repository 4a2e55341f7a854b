#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "gpu/host_memory.hpp"
#include "hicache/clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

namespace hicache {
namespace {

using namespace literals;
using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

/// The first number of a file; `missing` if it cannot be read.
uint64_t number_in(const std::string& path, uint64_t missing) {
  auto number = missing;
  return std::ifstream{path} >> number ? number : missing;
}

/// Bytes in the pages of a mapping that lie in memory.
uint64_t resident_bytes(std::span<std::byte> memory) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto in_memory = std::vector<unsigned char>((memory.size() + page - 1) / page);
  if (::mincore(memory.data(), memory.size(), in_memory.data()) != 0)
    return 0;
  const auto pages = std::count_if(in_memory.begin(), in_memory.end(),
                                   [](unsigned char state) { return (state & 1) != 0; });
  return std::min<uint64_t>(static_cast<uint64_t>(pages) * page, memory.size());
}

/// Whether neither the first nor the last page of what was a mapping is one any more.
bool is_unmapped(std::span<std::byte> memory) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto state = static_cast<unsigned char>(0);
  auto* last = memory.data() + (memory.size() - 1) / page * page;
  return ::mincore(memory.data(), 1, &state) != 0 && ::mincore(last, 1, &state) != 0;
}

bool all_zero(std::span<const std::byte> memory) {
  return memory[0] == std::byte{0}
         && std::memcmp(memory.data(), memory.data() + 1, memory.size() - 1) == 0;
}

/// Has the kernel refuse MADV_POPULATE_WRITE to this thread and those that it starts from now on.
bool refuse_to_populate(uint32_t code) {
  const auto call_at = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  const auto advice_at = static_cast<uint32_t>(offsetof(seccomp_data, args) + 2 * 8);
  auto filter = std::array{
    sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, call_at),
    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
    sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, advice_at),
    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_WRITE, 0, 1),
    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const auto program = sock_fprog{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
         && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// What create() gives where MADV_POPULATE_WRITE fails with `code`; nothing where that cannot be
/// had. In a thread of its own, because what is refused to a thread stays refused.
std::optional<result<host_mapping>> create_unpopulated(uint64_t bytes, uint32_t code) {
  auto made = std::optional<result<host_mapping>>{};
  std::thread{[&] {
    if (refuse_to_populate(code))
      made = host_mapping::create(bytes, std::nullopt, {});
  }}.join();
  return made;
}

// -- budget -------------------------------------------------------------------

TEST(HostMemoryBudgetTest, SharesWhatIsLeftAfterTheReserve) {
  struct row {
    uint64_t available;
    uint32_t ranks;
    uint64_t budget;
  };
  for (const auto& [available, ranks, budget] : {
         row{0, 1, 0},
         row{1, 1, 1},
         row{8_GiB, 1, 4_GiB},
         row{8_GiB, 4, 1_GiB},
         row{20_GiB, 1, 10_GiB},
         row{20_GiB + 2, 1, 10_GiB + 2},
         row{26_GiB, 1, 16_GiB},
         row{26_GiB, 8, 2_GiB},
         row{1034_GiB, 8, 128_GiB},
         row{10_GiB + 7, 2, (5_GiB + 4) / 2},
         row{std::numeric_limits<uint64_t>::max(), 1,
             std::numeric_limits<uint64_t>::max() - 10_GiB},
       })
    EXPECT_EQ(host_memory_budget(available, ranks), budget) << available << " / " << ranks;
  EXPECT_DEATH(static_cast<void>(host_memory_budget(1_GiB, 0)), "check failed");
}

TEST(HostMemoryBudgetTest, NamesWhatWasWantedAndWhatThereIs) {
  const auto alone = check_memory_available(1024_GiB * 1024, 1);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, ec::io_failure);
  EXPECT_THAT(alone.error().detail,
              ContainsRegex("^cannot allocate 1\\.0 PiB of host memory: [0-9.]+ [KMGT]iB are "
                            "available, less [0-9.]+ [KMGT]iB for the rest of the machine, leaves "
                            "[0-9.]+ [KMGT]iB$"));
  const auto shared = check_memory_available(1024_GiB * 1024, 4);
  ASSERT_FALSE(shared);
  EXPECT_THAT(shared.error().detail,
              ContainsRegex("^cannot allocate 1\\.0 PiB of host memory: [0-9.]+ [KMGT]iB are "
                            "available, less [0-9.]+ [KMGT]iB for the rest of the machine, shared "
                            "by 4 ranks, leaves [0-9.]+ [KMGT]iB each$"));
}

/// MemAvailable, read in another way than the code under test does.
uint64_t available_now() {
  auto file = std::ifstream{"/proc/meminfo"};
  for (auto line = std::string{}; std::getline(file, line);)
    if (line.starts_with("MemAvailable:"))
      return std::stoull(line.substr(line.find(':') + 1)) * 1_KiB;
  return 0;
}

TEST(HostMemoryBudgetTest, GoesByWhatTheMachineHasNow) {
  // The bounds are far apart, because other programs take and give memory meanwhile.
  const auto available = available_now();
  ASSERT_GT(available, 0u);
  EXPECT_TRUE(check_memory_available(1, 1));
  EXPECT_TRUE(check_memory_available(available / 8, 1));
  EXPECT_FALSE(check_memory_available(available / 8, 32));
  EXPECT_FALSE(check_memory_available(available * 2, 1));
}

// -- host_mapping -------------------------------------------------------------

std::string name_of(memory_pages pages) {
  switch (pages) {
    case memory_pages::gigabyte:
      return "1 GiB huge pages";
    case memory_pages::two_megabytes:
      return "2 MiB huge pages";
    case memory_pages::plain:
      return "plain pages";
  }
  return "?";
}

TEST(HostMappingTest, GivesZeroedResidentMemoryOfAnySize) {
  for (const auto size : {uint64_t{1}, uint64_t{4097}, 3_MiB + 5, 64_MiB, 200_MiB + 1}) {
    SCOPED_TRACE(size);
    auto mapping = host_mapping::create(size, std::nullopt, {});
    ASSERT_TRUE(mapping) << mapping.error().detail;
    ASSERT_EQ(mapping->bytes().size(), size);
    EXPECT_EQ(resident_bytes(mapping->bytes()), size);
    EXPECT_TRUE(all_zero(mapping->bytes()));
    mapping->bytes().back() = std::byte{1};
    EXPECT_EQ(mapping->description(), name_of(mapping->pages()));
  }
}

TEST(HostMappingTest, TakesHugePagesOnlyWhereThereAreAny) {
  const auto folder = std::string{"/sys/kernel/mm/hugepages/hugepages-2048kB/"};
  const auto free = number_in(folder + "free_hugepages", 0);
  const auto reserved = number_in(folder + "resv_hugepages", 0);
  const auto beyond_pool = number_in(folder + "nr_overcommit_hugepages", 0);
  const auto small = host_mapping::create(2_MiB - 1, std::nullopt, {});
  ASSERT_TRUE(small) << small.error().detail;
  EXPECT_EQ(small->pages(), memory_pages::plain);
  const auto large = host_mapping::create(5_MiB, std::nullopt, {});
  ASSERT_TRUE(large) << large.error().detail;
  if (free >= reserved + 3) {
    EXPECT_EQ(large->pages(), memory_pages::two_megabytes);
  } else if (beyond_pool == 0) {
    EXPECT_EQ(large->pages(), memory_pages::plain);
  }
}

TEST(HostMappingTest, UnmapsWhatItHeldOnce) {
  auto first = host_mapping::create(1_MiB, std::nullopt, {});
  auto second = host_mapping::create(2_MiB + 1, 0, {});
  ASSERT_TRUE(first && second);
  const auto one = first->bytes();
  const auto two = second->bytes();
  const auto described = second->description();
  auto moved = host_mapping{std::move(*first)};
  EXPECT_EQ(moved.bytes().data(), one.data());
  EXPECT_TRUE(first->bytes().empty());
  moved = std::move(*second);
  EXPECT_EQ(moved.bytes().data(), two.data());
  EXPECT_EQ(moved.bytes().size(), two.size());
  EXPECT_EQ(moved.description(), described);
  EXPECT_TRUE(is_unmapped(one));
  EXPECT_EQ(resident_bytes(two), two.size());
  { const auto last = std::move(moved); }
  EXPECT_TRUE(is_unmapped(two));
}

/// The policy for the memory at an address; nothing where the kernel has none.
std::optional<int> numa_policy(std::byte* address) {
  auto mode = 0;
  if (::syscall(SYS_get_mempolicy, &mode, nullptr, 0, address, MPOL_F_ADDR) != 0)
    return std::nullopt;
  return mode;
}

TEST(HostMappingTest, NamesTheNumaNodeThatItAskedFor) {
  const auto mapping = host_mapping::create(3_MiB, 0, {});
  const auto without = host_mapping::create(3_MiB, std::nullopt, {});
  ASSERT_TRUE(mapping && without);
  if (!numa_policy(mapping->bytes().data()))
    GTEST_SKIP() << "this kernel has no NUMA policies";
  EXPECT_EQ(numa_policy(mapping->bytes().data()), MPOL_PREFERRED);
  EXPECT_EQ(mapping->description(), name_of(mapping->pages()) + " on NUMA node 0");
  EXPECT_EQ(numa_policy(without->bytes().data()), MPOL_DEFAULT);
  EXPECT_THAT(without->description(), Not(HasSubstr("NUMA")));
}

TEST(HostMappingTest, LeavesANodeThatDoesNotExistToTheKernel) {
  for (const auto node : {-1, 1023, 1024, 1 << 20, std::numeric_limits<int>::max()}) {
    SCOPED_TRACE(node);
    const auto mapping = host_mapping::create(3_MiB, node, {});
    ASSERT_TRUE(mapping) << mapping.error().detail;
    EXPECT_EQ(resident_bytes(mapping->bytes()), 3_MiB);
    EXPECT_THAT(mapping->description(), Not(HasSubstr("NUMA")));
  }
}

TEST(HostMappingTest, TouchesByHandWhereTheKernelCannotPopulate) {
  const auto made = create_unpopulated(200_MiB + 1, EINVAL);
  if (!made)
    GTEST_SKIP() << "system calls cannot be refused here";
  ASSERT_TRUE(*made) << made->error().detail;
  EXPECT_EQ(resident_bytes((*made)->bytes()), 200_MiB + 1);
  EXPECT_EQ((*made)->pages(), memory_pages::plain);
}

TEST(HostMappingTest, SaysWhyMemoryCannotBeHad) {
  const auto made = create_unpopulated(200_MiB, ENOMEM);
  if (!made)
    GTEST_SKIP() << "system calls cannot be refused here";
  ASSERT_FALSE(*made);
  EXPECT_EQ(made->error().code, ec::io_failure);
  EXPECT_EQ(made->error().detail,
            "cannot allocate 200.0 MiB of host memory: Cannot allocate memory");
}

TEST(HostMappingTest, RefusesMoreThanItsShareOfTheMachine) {
  const auto available = available_now();
  const auto mapping = host_mapping::create(available / 8, std::nullopt, {32, {}});
  ASSERT_FALSE(mapping);
  EXPECT_THAT(mapping.error().detail,
              AllOf(HasSubstr("are available"), HasSubstr("shared by 32 ranks")));
}

struct report {
  uint64_t ready;
  uint64_t total;
  std::thread::id thread;
  time_point time;
};

TEST(HostMappingTest, TellsItsCallerHowFarItIs) {
  const auto clock = monotonic_clock{};
  auto reports = std::vector<report>{};
  const auto note = [&](uint64_t ready, uint64_t total) {
    reports.push_back({ready, total, std::this_thread::get_id(), clock.now()});
  };
  const auto begin = clock.now();
  const auto small = host_mapping::create(1_MiB, std::nullopt, {1, note});
  ASSERT_TRUE(small);
  if (clock.now() - begin < std::chrono::milliseconds{100}) {
    EXPECT_TRUE(reports.empty()) << "who need not wait need not hear of it";
  }
  // How much takes long enough depends on the machine. Without transparent huge pages less does;
  // after the first report they make the rest fast, so that there is something not to report.
  const auto set_huge_pages
    = [](bool on) { static_cast<void>(::prctl(PR_SET_THP_DISABLE, on ? 0 : 1, 0, 0, 0)); };
  const auto note_and_hurry = [&](uint64_t ready, uint64_t total) {
    note(ready, total);
    set_huge_pages(true);
  };
  auto size = 512_MiB + 1;
  auto last_time = clock.now();
  do {
    size *= 2;
    reports.clear();
    set_huge_pages(false);
    last_time = clock.now();
    EXPECT_TRUE(host_mapping::create(size, std::nullopt, {1, note_and_hurry}));
  } while ((reports.empty() || reports.front().ready > size / 2) && size <= available_now() / 16);
  set_huge_pages(true);
  if (reports.size() < 2)
    GTEST_SKIP() << "this machine is too fast to report on";
  auto last_ready = uint64_t{0};
  for (auto i = size_t{0}; i < reports.size(); ++i) {
    const auto& [ready, total, thread, time] = reports[i];
    EXPECT_EQ(total, size);
    EXPECT_EQ(thread, std::this_thread::get_id());
    EXPECT_GT(ready, last_ready);
    last_ready = ready;
    if (i + 1 < reports.size()) {
      EXPECT_GE(time - last_time, std::chrono::milliseconds{100});
    }
    last_time = time;
  }
  EXPECT_EQ(last_ready, size);
}

// -- memories -----------------------------------------------------------------

TEST(HostMemoryTest, IsPrivateAndWithinItsShare) {
  auto memory = allocate_host_memory(5_MiB, {});
  ASSERT_TRUE(memory) << memory.error().detail;
  EXPECT_EQ(resident_bytes({(*memory)->data(), (*memory)->size()}), 5_MiB);
  EXPECT_THAT((*memory)->description(), EndsWith("pages"));
  const auto shared = (*memory)->share();
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().code, ec::unsupported);
  EXPECT_THAT(shared.error().detail, HasSubstr("cannot be shared"));
  EXPECT_FALSE(allocate_host_memory(available_now() / 8, {32, {}}));
}

TEST(HostMemoryTest, AdoptedMemoryIsResidentAndWithinItsShare) {
  const auto share = [](uint64_t bytes) {
    auto* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    return std::span{static_cast<std::byte*>(address), bytes};
  };
  const auto small = share(5_MiB);
  const auto memory = adopt_host_memory(small, {});
  ASSERT_TRUE(memory) << memory.error().detail;
  EXPECT_EQ(resident_bytes(small), 5_MiB);
  const auto large = share(available_now() / 8);
  const auto refused = adopt_host_memory(large, {32, {}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail, HasSubstr("shared by 32 ranks"));
  EXPECT_EQ(resident_bytes(large), 0u);
  ::munmap(small.data(), small.size());
  ::munmap(large.data(), large.size());
}

TEST(SharedMemoryTest, IsZeroedAndResident) {
  auto memory = allocate_shared_memory(3_MiB + 5);
  ASSERT_TRUE(memory) << memory.error().detail;
  const auto bytes = std::span{(*memory)->data(), (*memory)->size()};
  EXPECT_EQ(bytes.size(), 3_MiB + 5);
  EXPECT_EQ(resident_bytes(bytes), bytes.size());
  EXPECT_TRUE(all_zero(bytes));
  EXPECT_EQ((*memory)->description(), "plain pages, can be shared");
}

TEST(SharedMemoryTest, RefusesMoreThanThereIs) {
  const auto memory = allocate_shared_memory(1024_GiB * 1024);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ec::io_failure);
  EXPECT_THAT(memory.error().detail, AllOf(HasSubstr("cannot allocate 1.0 PiB"),
                                           HasSubstr("are available"), Not(HasSubstr("shared"))));
}

/// What the second process does; its exit status.
int answer(int text_from) {
  auto text = std::array<char, 100>{};
  const auto length = ::read(text_from, text.data(), text.size());
  if (length <= 0)
    return 1;
  auto memory = open_shared_memory({text.data(), static_cast<size_t>(length)});
  if (!memory)
    return 2;
  if ((*memory)->size() != 2_MiB + 3 || (*memory)->description().find("another process") == ~0UL)
    return 3;
  for (auto i = size_t{0}; i < 1_MiB; ++i)
    if ((*memory)->data()[i] != static_cast<std::byte>(i * 7))
      return 4;
  if ((*memory)->share() || (*memory)->share().error().code != ec::unsupported)
    return 5;
  for (auto i = size_t{1_MiB}; i < (*memory)->size(); ++i)
    (*memory)->data()[i] = static_cast<std::byte>(i * 11);
  return 0;
}

TEST(SharedMemoryTest, IsReadAndWrittenByAnotherProcess) {
  auto ends = std::array{-1, -1};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const auto from = unique_fd{ends[0]};
  auto to = unique_fd{ends[1]};
  // The other process is there before the memory is, so that it inherits nothing of it.
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    to = unique_fd{};
    ::_exit(answer(from.get()));
  }
  auto memory = allocate_shared_memory(2_MiB + 3);
  auto text = std::string{};
  if (memory) {
    for (auto i = size_t{0}; i < 1_MiB; ++i)
      (*memory)->data()[i] = static_cast<std::byte>(i * 7);
    text = (*memory)->share().value_or("nothing is shared");
  }
  EXPECT_EQ(::write(to.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  // Ends the child, whatever went wrong here.
  to = unique_fd{};
  auto status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(memory) << memory.error().detail;
  EXPECT_EQ(text.rfind("memfd " + std::to_string(::getpid()) + " ", 0), 0u) << text;
  EXPECT_THAT(text, EndsWith(" " + std::to_string(2_MiB + 3)));
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  auto wrong = size_t{0};
  for (auto i = size_t{0}; i < (*memory)->size(); ++i)
    wrong += (*memory)->data()[i] != static_cast<std::byte>(i * (i < 1_MiB ? 7 : 11)) ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
}

TEST(SharedMemoryTest, StaysWithWhoOpenedItAndVanishesForOthers) {
  auto memory = allocate_shared_memory(1_MiB);
  ASSERT_TRUE(memory);
  const auto text = (*memory)->share();
  ASSERT_TRUE(text);
  (*memory)->data()[1_MiB - 1] = std::byte{42};
  auto opened = open_shared_memory(*text);
  ASSERT_TRUE(opened) << opened.error().detail;
  EXPECT_NE((*opened)->data(), (*memory)->data());
  const auto here = std::span{(*memory)->data(), (*memory)->size()};
  const auto there = std::span{(*opened)->data(), (*opened)->size()};
  memory->reset();
  EXPECT_TRUE(is_unmapped(here));
  EXPECT_EQ(there.back(), std::byte{42});
  opened->reset();
  EXPECT_TRUE(is_unmapped(there));
  const auto late = open_shared_memory(*text);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ec::io_failure);
}

TEST(SharedMemoryTest, KeepsItsSizeAndItsSeals) {
  const auto memory = allocate_shared_memory(1_MiB);
  ASSERT_TRUE(memory);
  const auto text = (*memory)->share().value();
  const auto begin = text.find(' ', 6) + 1;
  const auto fd = std::stoi(text.substr(begin));
  EXPECT_NE(::ftruncate(fd, 0), 0);
  EXPECT_NE(::ftruncate(fd, 2_MiB), 0);
  EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedMemoryTest, RefusesTextsThatShareDoesNotWrite) {
  for (const auto* text : {"",
                           "memfd",
                           "memfd 1 2",
                           "memfd 1 2 ",
                           "memfd 1 2 3 ",
                           " memfd 1 2 3",
                           "memfd  1 2 3",
                           "memfd\t1 2 3",
                           "memfd 1 2 3\n",
                           "memfd 1 2 3 4",
                           "memfd 01 2 3",
                           "memfd 1 02 3",
                           "memfd 1 2 03",
                           "memfd +1 2 3",
                           "memfd -1 2 3",
                           "memfd 1 -2 3",
                           "memfd 1 2 -3",
                           "memfd 0 2 3",
                           "memfd 1 2 0",
                           "memfd 0x1 2 3",
                           "memfd 1 2 3KiB",
                           "memfd 4294967296 2 3",
                           "memfd 1 4294967296 3",
                           "memfd 1 2 18446744073709551616",
                           "memfd self 2 3",
                           "memfd ../1 2 3",
                           "MEMFD 1 2 3",
                           "cudaipc 1 2 3"}) {
    SCOPED_TRACE(text);
    const auto opened = open_shared_memory(text);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ec::invalid_argument);
    EXPECT_EQ(opened.error().detail, "'" + std::string{text}
                                       + "' does not name shared host memory; expected 'memfd "
                                         "PROCESS DESCRIPTOR BYTES'");
  }
}

std::string text_for(pid_t process, int fd, uint64_t bytes) {
  return "memfd " + std::to_string(process) + " " + std::to_string(fd) + " "
         + std::to_string(bytes);
}

TEST(SharedMemoryTest, OpensOnlyWhatIsThereSealedAndOfItsSize) {
  const auto unsealed = unique_fd{::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  const auto sealed = unique_fd{::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(::ftruncate(sealed.get(), 4096), 0);
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  auto ends = std::array{-1, -1};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const auto pipe_end = unique_fd{ends[0]};
  const auto other_end = unique_fd{ends[1]};
  const auto file = unique_fd{::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
  ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  const auto gone = ::fork();
  ASSERT_GE(gone, 0);
  if (gone == 0)
    ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  EXPECT_TRUE(open_shared_memory(text_for(::getpid(), sealed.get(), 4096)));
  struct row {
    std::string text;
    const char* reason;
  };
  for (const auto& [text, reason] : {
         row{text_for(::getpid(), unsealed.get(), 4096), "not a memfd that is sealed"},
         row{text_for(::getpid(), file.get(), 4096), "not a memfd that is sealed"},
         row{text_for(::getpid(), pipe_end.get(), 4096), "not a memfd that is sealed"},
         row{text_for(::getpid(), sealed.get(), 4095), "has 4096 bytes"},
         row{text_for(::getpid(), sealed.get(), 4097), "has 4096 bytes"},
         row{text_for(::getpid(), sealed.get(), ~uint64_t{0}), "has 4096 bytes"},
         row{text_for(::getpid(), 1 << 30, 4096), "No such file"},
         row{text_for(gone, sealed.get(), 4096), "No such file"},
       }) {
    SCOPED_TRACE(text);
    const auto opened = open_shared_memory(text);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ec::io_failure);
    EXPECT_THAT(opened.error().detail,
                AllOf(HasSubstr("cannot open the memory '" + text + "'"), HasSubstr(reason)));
  }
}

} // namespace
} // namespace hicache
