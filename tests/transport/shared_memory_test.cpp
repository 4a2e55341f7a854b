#include "base/units.hpp"
#include "tests/transport/child_process.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/shared_memory.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace literals;

std::string text_at(const std::byte* bytes, size_t length) {
  return {reinterpret_cast<const char*>(bytes), length};
}

unique_fd connect_raw(const std::string& name) {
  auto fd = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  auto address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  return fd;
}

TEST(SharedMemoryTest, IsZeroedResidentAndWritable) {
  auto memory = shared_memory::create(1_MiB + 1, "hicache-test");
  ASSERT_TRUE(memory) << to_string(memory.error());
  EXPECT_EQ(memory->size(), 1_MiB + 1);
  for (auto x : memory->bytes())
    ASSERT_EQ(x, std::byte{0});
  memory->bytes().back() = std::byte{7};
  auto moved = std::move(*memory);
  EXPECT_EQ(moved.bytes().back(), std::byte{7});
  EXPECT_EQ(memory->data(), nullptr);
}

/// Bytes of the pages in which an address of this process is mapped.
uint64_t page_size_at(const void* address) {
  auto file = std::ifstream{"/proc/self/smaps"};
  auto is_here = false;
  for (auto line = std::string{}; std::getline(file, line);) {
    auto begin = uintptr_t{0};
    auto end = uintptr_t{0};
    auto kibibytes = uint64_t{0};
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      is_here = begin <= at && at < end;
    } else if (is_here && std::sscanf(line.c_str(), "KernelPageSize: %lu kB", &kibibytes) == 1) {
      return kibibytes * 1024;
    }
  }
  return 0;
}

/// Pages of this memory that this process can touch without a page fault, as proc_pid_pagemap(5)
/// tells.
uint64_t mapped_pages(std::span<const std::byte> memory) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  auto entries = std::vector<uint64_t>(memory.size() / page);
  auto file = std::ifstream{"/proc/self/pagemap", std::ios::binary};
  file.seekg(static_cast<std::streamoff>(reinterpret_cast<uintptr_t>(memory.data()) / page * 8));
  file.read(reinterpret_cast<char*>(entries.data()),
            static_cast<std::streamsize>(entries.size() * sizeof(uint64_t)));
  EXPECT_TRUE(file);
  return static_cast<uint64_t>(
    std::ranges::count_if(entries, [](uint64_t entry) { return entry >> 63 != 0; }));
}

TEST(SharedMemoryTest, TheFirstPassOverItFaultsInNoPage) {
  const auto memory = shared_memory::create(4_MiB, "hicache-test");
  ASSERT_TRUE(memory);
  EXPECT_EQ(mapped_pages(memory->bytes()), memory->size() / ::sysconf(_SC_PAGESIZE));
}

TEST(SharedMemoryTest, IsOfHugePagesWhereTheMachineHasReservedThem) {
  auto free_pages = uint64_t{0};
  std::ifstream{"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"} >> free_pages;
  if (free_pages < 4)
    GTEST_SKIP() << "fewer than four huge pages are free here";
  auto memory = shared_memory::create(8_MiB, "hicache-test");
  ASSERT_TRUE(memory) << to_string(memory.error());
  EXPECT_EQ(page_size_at(memory->data()), 2_MiB);
  memory->bytes().back() = std::byte{7};
  const auto duplicate = unique_fd{::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0)};
  const auto peer = mapped_peer_memory::open(duplicate);
  ASSERT_TRUE(peer) << to_string(peer.error());
  EXPECT_EQ(page_size_at(peer->data()), 2_MiB);
  EXPECT_EQ(peer->bytes().back(), std::byte{7});
  const auto odd = shared_memory::create(8_MiB + 64, "hicache-test");
  ASSERT_TRUE(odd) << to_string(odd.error());
  EXPECT_LT(page_size_at(odd->data()), 2_MiB);
}

TEST(SharedMemoryTest, TheRestBecomesResidentWhenItIsUsed) {
  auto memory = shared_memory::create(8_MiB, 1_MiB, "hicache-test");
  ASSERT_TRUE(memory) << to_string(memory.error());
  EXPECT_EQ(memory->size(), 8_MiB);
  const auto held = [&memory] {
    struct stat status = {};
    EXPECT_EQ(::fstat(memory->fd(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  EXPECT_EQ(held(), 1_MiB);
  memory->bytes().back() = std::byte{7};
  EXPECT_GT(held(), 1_MiB);
  EXPECT_TRUE(shared_memory::create(8_MiB, 0, "hicache-test"));
}

TEST(SharedMemoryTest, RefusesMoreThanThereIsAndNamesBothFigures) {
  for (auto bytes : {uint64_t{1} << 50, ~uint64_t{0}}) {
    const auto memory = shared_memory::create(bytes, "hicache-test");
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ec::io_failure);
    EXPECT_NE(memory.error().detail.find(std::to_string(bytes)), std::string::npos);
    EXPECT_NE(memory.error().detail.find("available: "), std::string::npos);
  }
  EXPECT_EQ(shared_memory::create(0, "hicache-test").error().code, ec::invalid_argument);
}

TEST(SharedMemoryTest, PeersCanNeitherShrinkItNorMapItWritable) {
  auto memory = shared_memory::create(64_KiB, "hicache-test");
  ASSERT_TRUE(memory);
  EXPECT_NE(::ftruncate(memory->fd(), 0), 0);
  if ((::fcntl(memory->fd(), F_GET_SEALS) & F_SEAL_FUTURE_WRITE) == 0)
    GTEST_SKIP() << "this kernel has no F_SEAL_FUTURE_WRITE";
  EXPECT_EQ(::mmap(nullptr, 64_KiB, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0),
            MAP_FAILED);
}

TEST(SharedMemoryTest, UnsealedMemoryOfAPeerIsNotMapped) {
  const auto fd = unique_fd{::memfd_create("hicache-test", MFD_CLOEXEC)};
  ASSERT_EQ(::ftruncate(fd.get(), 4096), 0);
  const auto mapped = mapped_peer_memory::open(fd);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code, ec::io_failure);
}

TEST(MemorySharingTest, AnotherProcessSeesWhatTheOwnerWrites) {
  auto child = test::child_process::start([](test::pipe_end& parent) {
    const auto mapped = open_peer_memory(parent.receive());
    if (!mapped || mapped->size() != 64_KiB
        || text_at(mapped->data() + 100, 16) != "written by owner")
      return 1;
    parent.send("mapped");
    // The owner writes again while the memory is mapped here.
    if (parent.receive() != "again" || text_at(mapped->data() + 200, 5) != "later")
      return 2;
    return 0;
  });
  auto memory = shared_memory::create(64_KiB, "hicache-test");
  ASSERT_TRUE(memory);
  auto offer = memory_offer::start(*memory);
  ASSERT_TRUE(offer) << to_string(offer.error());
  std::memcpy(memory->data() + 100, "written by owner", 16);
  child.send((*offer)->name());
  EXPECT_EQ(child.receive(), "mapped");
  std::memcpy(memory->data() + 200, "later", 5);
  child.send("again");
  EXPECT_EQ(child.wait(), 0);
}

TEST(MemorySharingTest, AnotherProcessWritesWhereItIsLet) {
  auto child = test::child_process::start([](test::pipe_end& parent) {
    const auto mapped = open_peer_memory(parent.receive(), peer_access::write);
    if (!mapped)
      return 1;
    std::memcpy(mapped->writable_bytes().data() + 100, "written by peer", 15);
    return 0;
  });
  auto memory = shared_memory::create(64_KiB, "hicache-test", peer_access::write);
  ASSERT_TRUE(memory);
  EXPECT_NE(::ftruncate(memory->fd(), 0), 0) << "nobody can shrink it";
  auto offer = memory_offer::start(*memory, peer_access::write);
  ASSERT_TRUE(offer) << to_string(offer.error());
  child.send((*offer)->name());
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(text_at(memory->data() + 100, 15), "written by peer");
}

TEST(MemorySharingTest, WhoMayReadCannotMapItToWrite) {
  for (const auto most : {peer_access::read, peer_access::write}) {
    auto memory = shared_memory::create(64_KiB, "hicache-test", most);
    ASSERT_TRUE(memory);
    auto offer = memory_offer::start(*memory);
    ASSERT_TRUE(offer);
    EXPECT_TRUE(open_peer_memory((*offer)->name()));
    const auto mapped = open_peer_memory((*offer)->name(), peer_access::write);
    ASSERT_FALSE(mapped);
    EXPECT_EQ(mapped.error().code, ec::io_failure);
  }
}

TEST(MemorySharingTest, MappedMemoryOutlivesAKilledOwnerAndItsNameVanishes) {
  auto owner = test::child_process::start([](test::pipe_end& parent) {
    auto memory = shared_memory::create(4_KiB, "hicache-test");
    auto offer = memory_offer::start(*memory);
    std::memcpy(memory->data(), "still here", 10);
    parent.send((*offer)->name());
    parent.receive();
    return 0;
  });
  const auto name = owner.receive();
  auto mapped = open_peer_memory(name);
  ASSERT_TRUE(mapped) << to_string(mapped.error());
  owner.kill();
  EXPECT_EQ(text_at(mapped->data(), 10), "still here");
  const auto again = open_peer_memory(name);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ec::peer_unreachable);
}

TEST(MemorySharingTest, UnknownNamesAreUnreachable) {
  for (const auto& name : {std::string{"hicache-nobody"}, std::string{}, std::string(500, 'x')}) {
    const auto mapped = open_peer_memory(name);
    ASSERT_FALSE(mapped);
    EXPECT_EQ(mapped.error().code, ec::peer_unreachable);
  }
}

TEST(MemorySharingTest, ProcessesOfOtherUsersAreRefused) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  auto child = test::child_process::start([](test::pipe_end& parent) {
    if (::setuid(65534) != 0)
      return 77;
    const auto fd = connect_raw(parent.receive());
    ::fcntl(fd.get(), F_SETFL, 0);
    auto byte = char{};
    // The owner closes without sending anything.
    return ::recv(fd.get(), &byte, 1, 0) == 0 ? 0 : 1;
  });
  auto memory = shared_memory::create(4_KiB, "hicache-test");
  auto offer = memory_offer::start(*memory);
  ASSERT_TRUE(offer);
  child.send((*offer)->name());
  const auto status = child.wait();
  if (status == 77)
    GTEST_SKIP() << "no other user here";
  EXPECT_EQ(status, 0);
}

TEST(MemorySharingTest, PeersThatSayNothingOrLeaveDoNotHoldUpOthers) {
  auto memory = shared_memory::create(4_KiB, "hicache-test");
  auto offer = memory_offer::start(*memory);
  ASSERT_TRUE(offer);
  auto silent = std::vector<unique_fd>{};
  for (auto i = 0; i < 20; ++i) {
    silent.push_back(connect_raw((*offer)->name()));
    connect_raw((*offer)->name());
  }
  EXPECT_TRUE(open_peer_memory((*offer)->name()));
}

TEST(MemorySharingTest, AnOfferThatEndsIsUnreachable) {
  auto memory = shared_memory::create(4_KiB, "hicache-test");
  auto offer = memory_offer::start(*memory);
  ASSERT_TRUE(offer);
  const auto name = (*offer)->name();
  offer->reset();
  EXPECT_EQ(open_peer_memory(name).error().code, ec::peer_unreachable);
}

} // namespace
} // namespace hicache
