// Clients of a node on another machine: over TLS on loopback, as far as they can tell.

#include "backends/ask.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "messages/page_header.hpp"
#include "rpc/limits.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/runtime/node_processes.hpp"

#include <caf/actor_cast.hpp>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

ec code_of(const auto& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

/// An engine, of whatever machine.
struct engine : engine_process {
  explicit engine(std::string at, const tls_files& tls = {}, client_info who = {1, 7})
    : engine_process(std::move(at), who, tls) {}

  /// The node, as one reaches it who does not use a node_client.
  node_actor attach() {
    const auto found = ask<caf::strong_actor_ptr>(system, network.node_connector(),
                                                  caf::timespan{20s}, atom::connect_v, address);
    EXPECT_TRUE(found) << to_string(found.error());
    auto node = caf::actor_cast<node_actor>(*found);
    EXPECT_TRUE(tell<node_info>(node, atom::attach_v, client_info{1, 7}));
    return node;
  }

  template <class Answer, class Verb, class Request>
  result<Answer> tell(const node_actor& node, Verb verb, Request request) {
    return ask<Answer>(system, node, caf::timespan{20s}, verb, std::move(request));
  }

  /// Asks for what carries bytes.
  template <class Answer, class Verb, class Request>
  result<Answer> carry(const node_actor& node, Verb verb, Request request) {
    const auto carrier
      = caf::actor_cast<page_carrier_actor>(caf::actor_cast<caf::strong_actor_ptr>(node));
    return ask<Answer>(system, carrier, caf::timespan{20s}, verb,
                       std::make_shared<const Request>(std::move(request)));
  }
};

std::string address_of(const node_process& node) {
  return to_string(*node.host->listening());
}

class RemoteClientTest : public ::testing::Test {
protected:
  tls_files sign(const std::string& name, const std::vector<std::string>& units = {}) {
    return sign_by(authority_, name, units);
  }

  tls_files sign_by(const authority& by, const std::string& name,
                    const std::vector<std::string>& units = {}) {
    const auto at = folder_.path() + "/" + name;
    std::filesystem::create_directory(at);
    return by.sign_into(at, units);
  }

  std::unique_ptr<node_process> start(size_t pages, uint16_t port = 0) {
    auto options = node_host_options{};
    options.memory_bytes = pages * slot_bytes_for(page_size);
    options.socket = socket();
    options.listen = rpc::endpoint{"127.0.0.1", port};
    options.tls = sign("node");
    options.shares = {.of_client = 0.5, .of_tenant = 1, .of_all = 1};
    return std::make_unique<node_process>(std::move(options));
  }

  std::string socket() const { return folder_.path() + "/socket"; }

  temporary_folder folder_;
  authority authority_{"cluster"};
};

TEST_F(RemoteClientTest, WhatOneStoresOthersReadWhereverTheyAre) {
  const auto node = start(64);
  auto writer = engine{address_of(*node), sign("writer")};
  ASSERT_EQ(code_of(writer.put(1)), ec::none);
  auto local = engine{"unix:" + socket()};
  EXPECT_EQ(local.get(1), bytes_of(1, page_size));
  ASSERT_TRUE(local.put(2));
  auto reader = engine{address_of(*node), sign("reader")};
  EXPECT_EQ(reader.get(1), bytes_of(1, page_size));
  EXPECT_EQ(reader.get(2), bytes_of(2, page_size));
  EXPECT_EQ(code_of(reader.get(3)), ec::not_found);
  EXPECT_TRUE(reader.put(1)) << "it is there already";
  const auto keys = std::array{key_of(1), key_of(3)};
  EXPECT_EQ(reader.client.exists(keys, soon()), (std::vector{true, false}));
  EXPECT_EQ(reader.client.prefetch(keys, true, soon()), (std::vector{true, false}));
  EXPECT_EQ(code_of(reader.client.remove(keys, soon()).at(0)), ec::none);
  EXPECT_EQ(code_of(local.get(1)), ec::not_found);
  const auto status = reader.client.status({}, soon());
  ASSERT_TRUE(status);
  EXPECT_EQ(status->client_count, 3u);
  EXPECT_EQ(status->reservations, 0u);
  EXPECT_EQ(status->leases, 0u);
}

TEST_F(RemoteClientTest, PagesOfAllLengthsInAllPartsAreWrittenAndRead) {
  // Longer than a message, and many in one.
  const auto node = start(4096);
  auto one = engine{address_of(*node), sign("one")};
  const auto lengths = std::array{size_t{1},
                                  limits::transfer_bytes,
                                  limits::transfer_bytes + 1,
                                  3 * limits::transfer_bytes + 77,
                                  size_t{5000},
                                  size_t{64}};
  auto bytes = std::vector<page_bytes>{};
  auto writes = std::vector<page_write>{};
  for (auto i = size_t{0}; i < lengths.size(); ++i)
    bytes.push_back(bytes_of(i, lengths[i]));
  for (auto i = size_t{0}; i < lengths.size(); ++i)
    writes.push_back(
      {key_of(i), {}, cut(std::as_const(bytes[i]), {lengths[i] / 3, 0, lengths[i] / 2})});
  for (const auto& put : one.client.put(writes, soon()))
    EXPECT_EQ(code_of(put), ec::none);
  auto back = std::vector<page_bytes>{};
  for (const auto length : lengths)
    back.emplace_back(length);
  auto reads = std::vector<page_read>{};
  for (auto i = size_t{0}; i < lengths.size(); ++i)
    reads.push_back({key_of(i), cut(back[i], {0, lengths[i] / 5, lengths[i] / 2, 0})});
  for (const auto& got : one.client.get(reads, soon()))
    EXPECT_EQ(code_of(got), ec::none);
  EXPECT_EQ(back, bytes);
  auto many = std::vector<page_write>{};
  for (auto number = uint64_t{100}; number < 1800; ++number)
    many.push_back({key_of(number), {}, {std::span{bytes[5]}}});
  for (const auto& put : one.client.put(many, soon()))
    EXPECT_EQ(code_of(put), ec::none);
  EXPECT_EQ(one.get(1799, 64), bytes[5]);
}

TEST_F(RemoteClientTest, AViewIsACopyThatOutlivesThePageAndTheNode) {
  auto node = start(64);
  auto one = engine{address_of(*node), sign("one")};
  ASSERT_TRUE(one.put(1));
  const auto keys = std::array{key_of(1), key_of(2)};
  auto view = one.client.view(keys, false, soon());
  ASSERT_TRUE(view);
  EXPECT_EQ(one.client.status({}, soon())->leases, 0u);
  EXPECT_EQ(code_of(one.client.remove(keys, soon()).at(0)), ec::none);
  node.reset();
  const auto moved = std::move(*view);
  EXPECT_TRUE(std::ranges::equal(moved.pages().at(0), bytes_of(1, page_size)));
  EXPECT_TRUE(moved.pages().at(1).empty());
  auto bytes = page_bytes(page_size);
  EXPECT_TRUE(moved.copy(0, std::array{std::span{bytes}}));
  EXPECT_EQ(bytes, bytes_of(1, page_size));
}

TEST_F(RemoteClientTest, PagesOfOtherLengthsAndNamespacesAreNotRead) {
  const auto node = start(64);
  auto one = engine{address_of(*node), sign("one")};
  ASSERT_TRUE(one.put(1));
  EXPECT_EQ(code_of(one.get(1, page_size + 1)), ec::invalid_argument);
  auto other = engine{address_of(*node), sign("other"), {1, 8}};
  EXPECT_EQ(code_of(other.get(1)), ec::not_found);
}

TEST_F(RemoteClientTest, ADamagedPageIsAMissAndGoes) {
  const auto node = start(64);
  auto remote = engine{address_of(*node), sign("one")};
  ASSERT_TRUE(remote.put(1));
  {
    auto local = engine{"unix:" + socket()};
    const auto view = local.client.view(std::array{key_of(1)}, false, soon());
    ASSERT_TRUE(view);
    const_cast<std::byte&>(view->pages()[0][7]) ^= std::byte{1};
  }
  EXPECT_EQ(code_of(remote.get(1)), ec::corrupt_page);
  while (code_of(remote.get(1)) == ec::corrupt_page)
    std::this_thread::yield();
  EXPECT_EQ(code_of(remote.get(1)), ec::not_found);
  ASSERT_TRUE(remote.put(1));
  EXPECT_EQ(remote.get(1), bytes_of(1, page_size));
}

TEST_F(RemoteClientTest, AClientOutlivesARestartOfTheNode) {
  auto node = start(64);
  const auto port = node->host->listening()->port;
  auto one = engine{address_of(*node), sign("one")};
  ASSERT_TRUE(one.put(1));
  node.reset();
  EXPECT_FALSE(one.get(1));
  EXPECT_FALSE(one.put(2));
  node = start(64, port);
  const auto end = soon();
  while (!one.client.connect(soon()))
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(code_of(one.get(1)), ec::not_found);
  EXPECT_TRUE(one.put(1));
  EXPECT_EQ(one.get(1), bytes_of(1, page_size));
}

TEST_F(RemoteClientTest, OnlyThoseWithACertificateOfTheClusterGetIn) {
  const auto node = start(64);
  auto stranger = engine{address_of(*node), sign_by(authority{"other"}, "stranger")};
  EXPECT_EQ(code_of(stranger.client.connect(soon())), ec::peer_unreachable);
  auto naked = engine{address_of(*node)};
  EXPECT_EQ(code_of(naked.client.connect(soon())), ec::peer_unreachable);
  auto one = engine{address_of(*node), sign("one")};
  EXPECT_EQ(code_of(one.client.connect(soon())), ec::none);
}

TEST_F(RemoteClientTest, AReadersCertificateDoesNotStore) {
  const auto node = start(64);
  auto member = engine{address_of(*node), sign("member", {"hicache:member"})};
  ASSERT_TRUE(member.put(1));
  auto reader = engine{address_of(*node), sign("reader", {"hicache:reader"})};
  EXPECT_EQ(reader.get(1), bytes_of(1, page_size));
  EXPECT_EQ(code_of(reader.put(2)), ec::not_permitted);
  EXPECT_EQ(code_of(reader.client.remove(std::array{key_of(1)}, soon()).at(0)), ec::not_permitted);
}

TEST_F(RemoteClientTest, ANodeWithAReadersCertificateDoesNotServe) {
  auto options = node_host_options{};
  options.memory_bytes = slot_bytes_for(page_size);
  options.socket = socket();
  options.listen = rpc::endpoint{"127.0.0.1", 0};
  options.tls = sign("reader", {"hicache:reader"});
  const auto clock = monotonic_clock{};
  options.clock = &clock;
  system_config config;
  auto system = caf::actor_system{config};
  const auto started = node_host::start(system, options);
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().detail.find("--tls-cert"), std::string::npos);
}

TEST_F(RemoteClientTest, WhatAClientThatEndsWasWritingIsFreeAgain) {
  const auto node = start(64);
  auto watcher = engine{"unix:" + socket()};
  {
    auto one = engine{address_of(*node), sign("one")};
    const auto at = one.attach();
    const auto got
      = one.tell<reserved_pages>(at, atom::reserve_v, wanted_pages{{{key_of(1), {}, page_size}}});
    ASSERT_TRUE(got);
    const auto bytes = bytes_of(1, 100);
    EXPECT_TRUE(one.carry<atom::ok>(at, atom::set_v,
                                    page_upload{got->reservation, {{key_of(1), 0, 100}}, bytes}));
    EXPECT_EQ(watcher.client.status({}, soon())->reservations, 1u);
  }
  const auto end = soon();
  while (watcher.client.status({}, soon())->reservations > 0)
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(watcher.client.status({}, soon())->client_count, 1u);
  EXPECT_EQ(code_of(watcher.get(1)), ec::not_found);
  EXPECT_TRUE(watcher.put(1));
}

TEST_F(RemoteClientTest, LiesOfAClientAreErrorsForIt) {
  const auto node = start(64);
  auto one = engine{address_of(*node), sign("one")};
  const auto at = one.attach();
  const auto got
    = one.tell<reserved_pages>(at, atom::reserve_v, wanted_pages{{{key_of(1), {}, page_size}}});
  ASSERT_TRUE(got);
  const auto number = got->reservation;
  const auto bytes = bytes_of(1, page_size);
  const auto checksum = page_checksum(std::array{std::span{bytes}});
  const auto complete = complete_pages{number, {{key_of(1), checksum}}};
  const auto write = [&](page_upload upload) {
    return code_of(one.carry<atom::ok>(at, atom::set_v, std::move(upload)));
  };
  EXPECT_EQ(code_of(one.tell<page_totals>(at, atom::commit_v, complete)), ec::invalid_argument)
    << "nothing was written";
  const auto piece = page_piece{key_of(1), 0, page_size};
  EXPECT_EQ(write({number + 1, {piece}, bytes}), ec::unknown_id);
  EXPECT_EQ(write({number, {piece}, bytes_of(1, page_size - 1)}), ec::invalid_argument);
  EXPECT_EQ(write({number, std::vector(limits::transfer_ranges + 1, piece), bytes}),
            ec::invalid_argument);
  EXPECT_EQ(write({number, {piece}, page_bytes(limits::transfer_bytes + 1)}), ec::invalid_argument);
  EXPECT_EQ(write({number, {piece}, bytes}), ec::none);
  EXPECT_EQ(code_of(one.tell<page_totals>(at, atom::commit_v,
                                          complete_pages{number, {{key_of(1), checksum + 1}}})),
            ec::corrupt_page);
  EXPECT_EQ(code_of(one.tell<page_totals>(at, atom::commit_v, complete)), ec::none);
  EXPECT_EQ(write({number, {piece}, bytes}), ec::unknown_id) << "it is committed";
  const auto read = [&](page_ranges ranges) {
    return code_of(one.carry<page_download_ptr>(at, atom::get_v, std::move(ranges)));
  };
  const auto most = static_cast<uint32_t>(limits::transfer_bytes);
  EXPECT_EQ(read({{key_of(1), 0, 1, 0, most}, {key_of(1), 0, 1, 0, 1}}), ec::invalid_argument);
  EXPECT_EQ(read(page_ranges(limits::transfer_ranges + 1)), ec::invalid_argument);
  auto other = engine{address_of(*node), sign("other")};
  EXPECT_EQ(other.get(1), bytes);
}

TEST_F(RemoteClientTest, AReservationIsThatOfItsClientAlone) {
  const auto node = start(64);
  auto one = engine{address_of(*node), sign("one")};
  auto other = engine{address_of(*node), sign("other")};
  const auto at = one.attach();
  const auto got
    = one.tell<reserved_pages>(at, atom::reserve_v, wanted_pages{{{key_of(1), {}, page_size}}});
  ASSERT_TRUE(got);
  const auto upload
    = page_upload{got->reservation, {{key_of(1), 0, page_size}}, bytes_of(1, page_size)};
  EXPECT_EQ(code_of(other.carry<atom::ok>(other.attach(), atom::set_v, upload)), ec::unknown_id);
}

TEST_F(RemoteClientTest, CallsEndAtTheirDeadlinesAndLeaveNothingBehind) {
  const auto node = start(4096);
  auto one = engine{address_of(*node), sign("one")};
  ASSERT_TRUE(one.put(1));
  const auto now = [] { return std::chrono::steady_clock::now(); };
  auto back = page_bytes(page_size);
  EXPECT_EQ(code_of(one.client.get(std::vector{page_read{key_of(1), {back}}}, now()).at(0)),
            ec::none)
    << "without a wait for other members";
  const auto bytes = bytes_of(2, 4 * limits::transfer_bytes);
  auto late = 0;
  for (auto time = 1us; time < 1s && late < 3; time *= 2) {
    const auto put = one.client.put(std::vector{page_write{key_of(2), {}, {bytes}}}, now() + time);
    if (put.at(0)) {
      EXPECT_EQ(one.get(2, bytes.size()), bytes);
      EXPECT_TRUE(one.client.remove(std::array{key_of(2)}, soon()).at(0));
    } else {
      EXPECT_NE(code_of(one.get(2, bytes.size())), ec::corrupt_page);
      ++late;
    }
  }
  EXPECT_GT(late, 0);
  const auto end = soon();
  const auto reserved = [](const node_status& status) { return status.reserved_bytes; };
  while (one.client.status({}, soon()).map(reserved).value_or(1) > 0)
    ASSERT_LT(now(), end) << "a put that was late keeps its room";
  EXPECT_TRUE(one.put(2, bytes.size()));
}

TEST_F(RemoteClientTest, WithoutFilesOfTlsBytesTravelInClear) {
  auto options = node_host_options{};
  options.memory_bytes = 16 * slot_bytes_for(page_size);
  options.socket = socket();
  options.listen = rpc::endpoint{"127.0.0.1", 0};
  const auto node = node_process{std::move(options)};
  auto one = engine{address_of(node)};
  ASSERT_TRUE(one.put(1));
  EXPECT_EQ(one.get(1), bytes_of(1, page_size));
  auto secret = engine{address_of(node), sign("one")};
  EXPECT_EQ(code_of(secret.client.connect(soon())), ec::peer_unreachable);
}

TEST_F(RemoteClientTest, SharesHoldForClientsOnOtherMachines) {
  const auto node = start(16);
  auto one = engine{address_of(*node), sign("one")};
  const auto bytes = bytes_of(1, page_size);
  auto pages = std::vector<page_write>{};
  for (auto number = uint64_t{0}; number < 9; ++number)
    pages.push_back({key_of(number), {}, {bytes}});
  EXPECT_EQ(code_of(one.client.put(pages, soon()).at(0)), ec::limit_reached);
  pages.pop_back();
  EXPECT_EQ(code_of(one.client.put(pages, soon()).at(0)), ec::none);
}

TEST_F(RemoteClientTest, AMachineHasABoundedNumberOfConnections) {
  const auto node = start(16);
  auto one = engine{address_of(*node), sign("one")};
  auto open = std::vector<node_actor>{};
  const auto connect = [&] {
    return ask<caf::strong_actor_ptr>(one.system, one.network.node_connector(), caf::timespan{20s},
                                      atom::connect_v, one.address);
  };
  while (open.size() < rpc::limits::connections_of_machine) {
    const auto found = connect();
    ASSERT_TRUE(found) << to_string(found.error());
    open.push_back(caf::actor_cast<node_actor>(*found));
  }
  EXPECT_FALSE(connect());
  auto local = engine{"unix:" + socket()};
  EXPECT_TRUE(local.put(1)) << "clients of its own machine do not mind";
}

TEST_F(RemoteClientTest, ManyWriteAndReadAtOnce) {
  const auto node = start(1024);
  auto one = engine{address_of(*node), sign("one")};
  auto other = engine{address_of(*node), sign("other")};
  auto threads = std::vector<std::thread>{};
  auto failures = std::atomic<int>{0};
  for (auto number = uint64_t{0}; number < 4; ++number)
    threads.emplace_back([&, number] {
      auto& mine = number % 2 == 0 ? one : other;
      for (auto i = uint64_t{0}; i < 20; ++i) {
        const auto key = i % 2 == 0 ? i : 1000 * number + i;
        if (!mine.put(key))
          ++failures;
        if (const auto bytes = mine.get(key); bytes && *bytes != bytes_of(key, page_size))
          ++failures;
      }
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(failures, 0);
}

} // namespace
} // namespace hicache::test
