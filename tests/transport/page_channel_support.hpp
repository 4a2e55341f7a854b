#pragma once

#include "base/page_checksum.hpp"
#include "rpc/tls.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/transport/child_process.hpp"
#include "transport/page_channel.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// Page servers of made-up bytes, and what is read from them.
namespace hicache::test {

inline time_point in(duration time) {
  return std::chrono::steady_clock::now() + time;
}

/// Bytes that tell their place.
inline std::vector<std::byte> pattern(size_t size) {
  auto bytes = std::vector<std::byte>(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
  return bytes;
}

/// Ranges with targets of their own, and where they come from: from the same place of each server.
struct wanted {
  struct target {
    range_place place;
    std::vector<range_place> places;
    std::vector<std::byte> bytes;
    std::vector<std::span<std::byte>> parts;
  };

  std::deque<target> targets;
  bool insists = true;

  /// @param part_bytes Into parts of how many bytes the target is cut; 0 leaves it whole.
  void add(uint64_t offset, size_t length, size_t part_bytes = 0) {
    auto& x = targets.emplace_back();
    x.place.offset = offset;
    x.bytes.assign(length, std::byte{0xee});
    auto rest = std::span{x.bytes};
    for (; part_bytes != 0 && rest.size() > part_bytes; rest = rest.subspan(part_bytes))
      x.parts.push_back(rest.first(part_bytes));
    x.parts.push_back(rest);
  }

  range_reads from(std::vector<std::string> servers) {
    auto reads = range_reads{std::move(servers), {}};
    for (auto& x : targets) {
      x.places.assign(reads.servers.size(), x.place);
      for (auto i = size_t{0}; i < x.places.size(); ++i)
        x.places[i].server = i;
      reads.ranges.push_back({x.places, x.parts, insists});
    }
    return reads;
  }

  std::vector<std::vector<std::byte>> bytes() const {
    auto all = std::vector<std::vector<std::byte>>{};
    for (const auto& x : targets)
      all.push_back(x.bytes);
    return all;
  }

  void expect_equal(std::span<const std::byte> memory) const {
    for (const auto& x : targets)
      ASSERT_TRUE(std::equal(x.bytes.begin(), x.bytes.end(),
                             memory.begin() + static_cast<std::ptrdiff_t>(x.place.offset)))
        << x.bytes.size() << " bytes at " << x.place.offset;
  }
};

inline void expect_all(const std::vector<result<range_answer>>& answers, ec code) {
  for (const auto& answer : answers) {
    ASSERT_EQ(answer.has_value(), code == ec::none)
      << (answer ? std::string{} : to_string(answer.error()));
    if (!answer) {
      EXPECT_EQ(answer.error().code, code) << to_string(answer.error());
    }
  }
}

/// The pages of these tests are bytes without headers; claims of this generation are false.
inline constexpr auto false_claim = uint32_t{7};

inline result<std::unique_ptr<page_server>> start_server(std::span<const std::byte> memory,
                                                         page_channel_options options = {},
                                                         const std::string& host = "127.0.0.1") {
  const auto guard = [](const range_claim& claim, uint64_t, const range_head&, uint64_t, uint64_t) {
    return claim.generation != false_claim;
  };
  return page_server::start(memory, guard, host, std::move(options));
}

inline std::unique_ptr<page_client> make_client(page_channel_options options = {}) {
  auto client = page_client::create(std::move(options));
  EXPECT_TRUE(client) << to_string(client.error());
  return std::move(*client);
}

/// Reads from one server.
inline std::vector<result<range_answer>> read_from(page_client& client, const std::string& address,
                                                   wanted& want, time_point deadline) {
  return client.read(want.from({address}), deadline);
}

/// What pages travel by in a test.
enum class way { clear, tls, ucx };

inline std::string name_of(const testing::TestParamInfo<way>& info) {
  constexpr const char* names[] = {"Clear", "Tls", "Ucx"};
  return names[static_cast<int>(info.param)];
}

/// Servers and clients that meet by one of the ways. UCX goes by TCP on loopback here: it makes no
/// difference to what is said.
class PageWayTest : public testing::TestWithParam<way> {
protected:
  void SetUp() override {
    if (GetParam() != way::ucx)
      return;
    setenv("UCX_NET_DEVICES", "lo", 1);
    setenv("UCX_TLS", "tcp,self", 1);
  }

  void TearDown() override {
    unsetenv("UCX_NET_DEVICES");
    unsetenv("UCX_TLS");
  }

  page_channel_options options() const {
    auto made = page_channel_options{};
    made.transport = GetParam() == way::ucx ? page_transport::ucx : page_transport::tcp;
    if (GetParam() == way::tls)
      made.tls = [context = tls_] { return context; };
    return made;
  }

  /// A server in a process of its own, so that it can be stopped and killed.
  child_process serve(size_t size) const {
    return child_process::start([size, how = options()](pipe_end& parent) {
      const auto memory = pattern(size);
      auto server = start_server(memory, how);
      parent.send(server ? (*server)->address() : to_string(server.error()));
      parent.receive();
      return 0;
    });
  }

  std::unique_ptr<page_client> make_client() const { return test::make_client(options()); }

private:
  temporary_folder folder_;
  std::shared_ptr<SSL_CTX> tls_ = *load_tls(authority{"cluster"}.sign_into(folder_.path()));
};

class PageChannelTest : public PageWayTest {
protected:
  void SetUp() override {
    PageWayTest::SetUp();
    auto started = start_server(memory, options());
    ASSERT_TRUE(started) << to_string(started.error());
    server = std::move(*started);
    client = make_client();
  }

  void TearDown() override {
    client = nullptr;
    server = nullptr;
    PageWayTest::TearDown();
  }

  /// Reads and expects the memory's bytes.
  void expect_readable(wanted& want) {
    const auto answers = read_from(*client, server->address(), want, in(std::chrono::seconds{30}));
    expect_all(answers, ec::none);
    want.expect_equal(memory);
    for (auto i = size_t{0}; i < answers.size(); ++i)
      ASSERT_EQ(answers[i]->checksum, page_checksum(want.targets[i].parts));
  }

  std::vector<std::byte> memory = pattern(size_t{48} << 20);
  std::unique_ptr<page_server> server;
  std::unique_ptr<page_client> client;
};

} // namespace hicache::test
