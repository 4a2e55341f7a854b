#include "backends/external/store_process.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace hicache::test {
namespace {

std::string content_of(const std::string& path) {
  auto file = std::ifstream{path};
  return {std::istreambuf_iterator{file}, {}};
}

TEST(StoreProcessTest, FindsAListeningSocketAsItsDescriptor3) {
  const auto folder = temporary_folder{};
  const auto told = folder.path() + "/told";
  // A write to a socket that listens fails, one to anything else does not.
  auto process = store_process::start("stat -L -c %F /proc/self/fd/3 > " + told + "; exec cat >&2");
  ASSERT_TRUE(process) << process.error().detail;
  const auto socket = connect_to(process->address());
  EXPECT_TRUE(socket) << to_string(socket.error());
  { const auto ended = std::move(*process); }
  EXPECT_EQ(content_of(told), "socket\n");
}

TEST(StoreProcessTest, EndsWithItsStandardInputOrByForceWithAllThatItStarted) {
  const auto folder = temporary_folder{};
  const auto done = folder.path() + "/done";
  {
    const auto process = store_process::start("cat; touch " + done);
    ASSERT_TRUE(process);
  }
  EXPECT_TRUE(std::filesystem::exists(done));
  const auto id = folder.path() + "/id";
  {
    // What it leaves behind when it ends.
    const auto process = store_process::start("sleep 1000 & echo $! > " + id + "; cat");
    ASSERT_TRUE(process);
  }
  const auto left = std::stoi(content_of(id));
  // It is gone once it is reaped, by whoever that is.
  const auto stopped = [&] {
    const auto state = content_of("/proc/" + std::to_string(left) + "/stat");
    return state.empty() || state.find(") Z ") != std::string::npos;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (!stopped() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_TRUE(stopped());
}

TEST(StoreProcessTest, TellsHowItEnded) {
  const auto end_of = [](const std::string& command) {
    auto process = store_process::start(command);
    EXPECT_TRUE(process);
    return process->end(std::chrono::seconds{30}).value_or("");
  };
  EXPECT_EQ(end_of("exit 3"), "ended with status 3");
  EXPECT_EQ(end_of("kill -9 $$"), "was ended by signal 9");
  auto running = store_process::start("cat");
  EXPECT_FALSE(running->end(std::chrono::milliseconds{0}));
}

} // namespace
} // namespace hicache::test
