// What only stores in other processes do: the process ends, hangs, or is none.

#include "backends/external/store_link.hpp"
#include "backends/external/store_process.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/external/store_host.hpp"
#include "tests/backends/told_keys.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto page_size = size_t{10000};

class ExternalBackendTest : public testing::Test {
protected:
  external_options options(const std::string& store = "folder_store:FolderStore") {
    return {.command = host_of(store), .options = R"({"path": ")" + folder_.path() + "\"}"};
  }

  blocking_store& open(external_options options) {
    auto store = make_external_backend(std::move(options), clock_);
    EXPECT_TRUE(store) << store.error().detail;
    return *(store_ = std::move(store.value()));
  }

  std::string refusal_of(external_options options) {
    const auto store = make_external_backend(std::move(options), clock_);
    return store ? "" : store.error().detail;
  }

  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  pid_t process() const {
    auto id = pid_t{0};
    std::ifstream{file("pid")} >> id;
    EXPECT_GT(id, 1);
    return id;
  }

  temporary_folder folder_;
  monotonic_clock clock_;
  std::unique_ptr<blocking_store> store_;
};

TEST_F(ExternalBackendTest, AProcessThatWasKilledIsStartedAgain) {
  auto& store = open(options());
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, page_size)));
  const auto first = process();
  ::kill(first, SIGKILL);
  const auto found = take(store, key_of(1), page_size);
  ASSERT_TRUE(found) << to_string(found.error());
  EXPECT_TRUE(*found == bytes_of(1, page_size));
  EXPECT_NE(process(), first);
}

TEST_F(ExternalBackendTest, AProcessThatHangsCostsNoMoreThanTheDeadline) {
  auto& store = open(options());
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, page_size)));
  ::kill(process(), SIGSTOP);
  auto status = 0;
  ASSERT_EQ(::waitpid(process(), &status, WUNTRACED), process());
  auto bytes = page_bytes(page_size);
  const auto reads = std::vector{page_read{key_of(1), {bytes}}};
  const auto began = clock_.now();
  EXPECT_EQ(code_of(store.get(reads, began + 100ms).at(0)), ec::deadline_exceeded);
  // A new connection does not help either.
  EXPECT_EQ(code_of(store.get(reads, clock_.now() + 100ms).at(0)), ec::deadline_exceeded);
  EXPECT_LT(clock_.now() - began, 30s);
  ::kill(process(), SIGCONT);
  EXPECT_TRUE(take(store, key_of(1), page_size));
}

TEST_F(ExternalBackendTest, TheStoreIsClosedWhenItsClientEnds) {
  open(options());
  store_.reset();
  EXPECT_TRUE(std::filesystem::exists(file("closed")));
}

TEST_F(ExternalBackendTest, AStoreThatFailsSaysWhyAndIsAskedAgain) {
  auto& store = open(options());
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, page_size)));
  const auto first = process();
  std::ofstream{file("broken")} << "x";
  const auto failed = take(store, key_of(1), page_size);
  EXPECT_EQ(code_of(failed), ec::io_failure);
  EXPECT_EQ(failed.error().detail, "folder: it is broken");
  EXPECT_EQ(code_of(put(store, key_of(2), bytes_of(2, page_size))), ec::io_failure);
  EXPECT_FALSE(store.health().ok);
  EXPECT_EQ(store.health().detail, "folder: it is broken");
  std::filesystem::remove(file("broken"));
  EXPECT_TRUE(take(store, key_of(1), page_size));
  EXPECT_TRUE(store.health().ok);
  EXPECT_EQ(process(), first);
}

TEST_F(ExternalBackendTest, DamagedObjectsAreMissesAndRemoved) {
  auto& store = open(options());
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, page_size)));
  {
    auto object = std::fstream{file(to_string(key_of(1))), std::ios::in | std::ios::out};
    object.seekp(5000);
    object.put('\x5a');
    object.put('\xa5');
  }
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::corrupt_page);
  EXPECT_FALSE(std::filesystem::exists(file(to_string(key_of(1)))));
}

TEST_F(ExternalBackendTest, DamagedObjectsStayWhereTheyAreToBeKept) {
  auto keeping = options();
  keeping.keeps_broken = true;
  auto& store = open(keeping);
  std::ofstream{file(to_string(key_of(1)))} << std::string(page_header_bytes + page_size, 'x');
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::corrupt_page);
  EXPECT_TRUE(std::filesystem::exists(file(to_string(key_of(1)))));
}

TEST_F(ExternalBackendTest, TellsWhatItRemovesToStayWithinItsBound) {
  auto bounded = options();
  bounded.max_bytes = 2 * (page_size + page_header_bytes);
  auto& store = open(bounded);
  auto told = told_keys{};
  EXPECT_FALSE(told.watch(store)) << "others remove objects, too";
  for (const auto number : {1u, 2u, 3u, 4u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, page_size)));
  EXPECT_EQ(told.list, (std::vector{key_of(1), key_of(2)}));
}

TEST_F(ExternalBackendTest, AListThatNoStoreMayGiveIsAFailure) {
  auto& store = open(options("folder_store:CrowdedStore"));
  const auto crowded = store.list("", no_deadline);
  EXPECT_EQ(code_of(crowded), ec::io_failure);
  EXPECT_EQ(crowded.error().detail, "the store listed 1025 objects; expected at most 1024");
  const auto misnamed = store.list("names", no_deadline);
  EXPECT_EQ(code_of(misnamed), ec::io_failure);
  EXPECT_EQ(misnamed.error().detail, "the store listed 'README'; expected 64 hexadecimal digits");
}

TEST_F(ExternalBackendTest, ObjectsAreNoLongerThanAWindow) {
  auto small = options();
  small.window_bytes = 64 << 10;
  auto& store = open(small);
  const auto refused = put(store, key_of(1), bytes_of(1, 64 << 10));
  EXPECT_EQ(code_of(refused), ec::invalid_argument);
  EXPECT_THAT(refused.error().detail, HasSubstr("does not fit into window_bytes of 64.0 KiB"));
  // More than fit at a time.
  auto writes = std::vector<page_write>{};
  auto pages = std::vector<page_bytes>{};
  for (auto i = 0u; i < 20; ++i)
    pages.push_back(bytes_of(i, page_size));
  for (auto i = 0u; i < 20; ++i)
    writes.push_back({key_of(i), {}, {pages[i]}});
  for (const auto& stored : store.set(writes, no_deadline))
    EXPECT_TRUE(stored) << to_string(stored.error());
  for (auto i = 0u; i < 20; ++i)
    EXPECT_TRUE(take(store, key_of(i), page_size) == pages[i]);
}

TEST_F(ExternalBackendTest, AnAnswerForTooFewObjectsIsAFailure) {
  auto& store = open(options("folder_store:ShortStore"));
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, page_size)));
  EXPECT_FALSE(has(store, key_of(1)));
  EXPECT_TRUE(take(store, key_of(1), page_size));
}

/// The host is reached by all processes of its user.
TEST_F(ExternalBackendTest, AHostClosesTheConnectionsOfThoseWhoDoNotSpeakItsProtocol) {
  const auto socket = file("socket");
  auto host = server_process{};
  ASSERT_TRUE(host.start(
    {store_python(), "-m", "hicache", "store-host", "--socket", socket, "folder_store:FolderStore"},
    "listening at " + socket));
  const auto address = unix_address_of(socket);
  ASSERT_TRUE(address);
  const auto is_closed_after = [&](const std::string& bytes) {
    const auto stranger = connect_to(*address);
    EXPECT_TRUE(stranger);
    ::send(stranger->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    auto waiting = pollfd{stranger->get(), POLLIN, 0};
    auto byte = char{};
    return ::poll(&waiting, 1, 30000) == 1 && ::recv(stranger->get(), &byte, 1, 0) <= 0;
  };
  EXPECT_TRUE(is_closed_after(std::string(100, '\xff')));                  // Longer than a message.
  EXPECT_TRUE(is_closed_after(std::string("\x08\0\0\0", 4) + "garbage!")); // None at all.
  const auto ours = options();
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
         {1 << 20, 1}, {0, (1 << 20) + 1}, {~uint64_t{0}, 2}}) {
    auto link = connect_to(*address).and_then([&](unique_fd connected) {
      return store_link::open(std::move(connected), 1 << 20, ours.options, 30s);
    });
    ASSERT_TRUE(link) << to_string(link.error());
    EXPECT_EQ(
      code_of((*link)->call(
        {.kind = store_request_kind::write, .objects = {{key_of(1), {}, offset, bytes}}}, 30s)),
      ec::peer_unreachable);
  }
  auto& store = open({.socket = socket, .options = ours.options});
  EXPECT_FALSE(has(store, key_of(1)));
  EXPECT_TRUE(put(store, key_of(1), bytes_of(1, page_size)));
}

TEST_F(ExternalBackendTest, WhatCannotBeAStoreIsNamed) {
  EXPECT_THAT(refusal_of(options("absent_module:X")),
              HasSubstr("external: the store's process ended with status 2"));
  EXPECT_THAT(refusal_of(options("folder_store:Absent")), HasSubstr("ended with status 2"));
  EXPECT_THAT(refusal_of(options("folder_store:NotAStore")), HasSubstr("ended with status 2"));
  auto no_folder = options();
  no_folder.options = R"({"path": "/absent"})";
  EXPECT_EQ(refusal_of(no_folder), "external: folder: key 'path': there is no /absent");
  auto bounded = options("folder_store:KeepingStore");
  bounded.max_bytes = 1 << 20;
  EXPECT_EQ(refusal_of(bounded),
            "key 'max_bytes': the store cannot remove what it holds; expected none");
}

} // namespace
} // namespace hicache::test
