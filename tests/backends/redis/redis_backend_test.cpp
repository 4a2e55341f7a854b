// What only Redis does, on real servers.

#include "backends/redis/redis_backend.hpp"
#include "backends/redis/redis_object.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/redis/redis_server.hpp"
#include "tests/backends/told_keys.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

namespace hicache::test {
namespace {

using std::chrono::milliseconds;

constexpr auto page_size = size_t{10000};

/// A store on a server of the test's own.
class RedisBackendTest : public testing::Test {
protected:
  blocking_store& open(redis_options options) {
    auto store = make_redis_backend(std::move(options), clock_);
    EXPECT_TRUE(store) << store.error().detail;
    return *stores_.emplace_back(std::move(store.value()));
  }

  redis_options options() { return options_for({server_.where()}); }

  result<void> put_page(blocking_store& store, uint64_t number) {
    return put(store, key_of(number), bytes_of(number, page_size));
  }

  static void expect_page(blocking_store& store, uint64_t number) {
    const auto found = take(store, key_of(number), page_size);
    ASSERT_TRUE(found) << to_string(found.error());
    EXPECT_EQ(*found, bytes_of(number, page_size));
  }

  std::string name_of(uint64_t number, uint32_t chunk = 0) {
    return redis_name("hicache:", key_of(number), chunk);
  }

  manual_clock clock_;
  redis_server server_;
  std::vector<std::unique_ptr<blocking_store>> stores_;
};

TEST_F(RedisBackendTest, InstancesShareObjectsWhateverTheirChunks) {
  auto small = options();
  small.chunk_bytes = redis_chunk_min;
  auto& first = open(small);
  auto& second = open(options());
  ASSERT_TRUE(put_page(first, 1));
  ASSERT_TRUE(put_page(second, 2));
  for (auto* store : {&first, &second})
    for (const auto number : {1u, 2u})
      expect_page(*store, number);
  EXPECT_TRUE(drop(second, key_of(1)));
  EXPECT_EQ(server_.ask({"DBSIZE"}).integer, 1) << "no value of the removed object is left";
}

TEST_F(RedisBackendTest, ObjectsTellTheirLengths) {
  auto small = options();
  small.chunk_bytes = redis_chunk_min;
  ASSERT_TRUE(put_page(open(small), 1));
  auto& store = open(options());
  auto room = page_bytes(2 * page_size);
  const auto found = store.read(std::vector{page_read{key_of(1), cut(room, {100})}},
                                part_lengths::bounded, no_deadline);
  ASSERT_EQ(found.at(0).value(), page_size);
  room.resize(page_size);
  EXPECT_EQ(room, bytes_of(1, page_size));
}

TEST_F(RedisBackendTest, ValuesThatSomebodyChangedAreRemoved) {
  auto small = options();
  small.chunk_bytes = redis_chunk_min;
  auto& store = open(small);
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put_page(store, number));
  server_.ask({"SETRANGE", name_of(1, 1), "5", "xyz"});
  server_.ask({"SET", name_of(2), "not ours"});
  server_.ask({"DEL", name_of(3, 2)});
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::corrupt_page);
  EXPECT_EQ(code_of(take(store, key_of(2), page_size)), ec::corrupt_page);
  EXPECT_EQ(code_of(take(store, key_of(3), page_size)), ec::not_found);
  EXPECT_EQ(server_.ask({"DBSIZE"}).integer, 0);
  EXPECT_EQ(store.health().counters.corrupt, 2u);
  server_.ask({"LPUSH", name_of(4), "a list"});
  EXPECT_EQ(code_of(take(store, key_of(4), page_size)), ec::io_failure);
}

TEST_F(RedisBackendTest, WhatDoesNotVerifyStaysWhereItIsToBeKept) {
  auto& writer = open(options());
  ASSERT_TRUE(put_page(writer, 1));
  server_.ask({"SET", name_of(2), "not ours"});
  auto keeping = options();
  keeping.fingerprint = 8;
  keeping.keeps_broken = true;
  auto& store = open(keeping);
  for (const auto number : {1u, 2u})
    EXPECT_EQ(code_of(take(store, key_of(number), page_size)), ec::corrupt_page);
  EXPECT_EQ(server_.ask({"EXISTS", name_of(2)}).integer, 1);
  expect_page(writer, 1);
}

TEST_F(RedisBackendTest, WithoutANamespaceObjectsOfAnyAreRead) {
  auto theirs = options();
  theirs.fingerprint = 8;
  ASSERT_TRUE(put_page(open(options()), 1));
  ASSERT_TRUE(put_page(open(theirs), 2));
  auto any = options();
  any.fingerprint.reset();
  auto& store = open(any);
  for (const auto number : {1u, 2u})
    expect_page(store, number);
}

TEST_F(RedisBackendTest, TheServerForgetsObjectsAfterTheirTime) {
  auto wanted = options();
  wanted.chunk_bytes = redis_chunk_min;
  wanted.ttl = std::chrono::minutes{5};
  ASSERT_TRUE(put_page(open(wanted), 1));
  const auto first = server_.ask({"PTTL", name_of(1)}).integer;
  EXPECT_GT(first, milliseconds{wanted.ttl}.count() / 2);
  EXPECT_LE(first, milliseconds{wanted.ttl}.count());
  for (const auto chunk : {1u, 2u})
    EXPECT_GT(server_.ask({"PTTL", name_of(1, chunk)}).integer, first)
      << "never a first value without the others";
  ASSERT_TRUE(put_page(open(options()), 2));
  EXPECT_EQ(server_.ask({"PTTL", name_of(2)}).integer, -1);
}

TEST_F(RedisBackendTest, AStoreRemovesItsOwnObjectsToStayWithinItsBound) {
  auto wanted = options();
  wanted.max_bytes = 3 * (page_size + redis_head_bytes);
  auto& bounded = open(wanted);
  auto& other = open(options());
  auto told = told_keys{};
  EXPECT_FALSE(told.watch(bounded)) << "the server evicts, too";
  ASSERT_TRUE(put_page(other, 9));
  for (auto number = uint64_t{1}; number <= 5; ++number)
    ASSERT_TRUE(put_page(bounded, number));
  EXPECT_EQ(told.list, (std::vector{key_of(1), key_of(2)}));
  EXPECT_EQ(server_.ask({"DBSIZE"}).integer, 4);
  EXPECT_FALSE(has(bounded, key_of(2)));
  for (const auto number : {3u, 4u, 5u, 9u})
    expect_page(bounded, number);
  const auto health = bounded.health();
  EXPECT_EQ(health.counters.evicted, 2u);
  EXPECT_EQ(health.objects, 3u);
  EXPECT_EQ(health.bytes, wanted.max_bytes);
}

TEST_F(RedisBackendTest, AFullServerSaysSo) {
  server_.ask({"CONFIG", "SET", "maxmemory", "1"});
  const auto refused = put_page(open(options()), 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::store_full);
  EXPECT_NE(refused.error().detail.find(to_string(server_.where())), std::string::npos);
  EXPECT_EQ(server_.ask({"DBSIZE"}).integer, 0);
}

TEST_F(RedisBackendTest, ARestartedServerIsFoundAgain) {
  auto& store = open(options());
  ASSERT_TRUE(put_page(store, 1));
  server_.kill();
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::peer_unreachable);
  EXPECT_FALSE(store.health().ok);
  server_.start();
  clock_.advance(redis_pause_max);
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::not_found);
  ASSERT_TRUE(put_page(store, 1));
  expect_page(store, 1);
  EXPECT_TRUE(store.health().ok);
}

TEST_F(RedisBackendTest, AConnectionThatTheServerClosedIsMadeAgain) {
  auto& store = open(options());
  ASSERT_TRUE(put_page(store, 1));
  server_.ask({"CLIENT", "KILL", "TYPE", "normal"});
  expect_page(store, 1);
}

TEST_F(RedisBackendTest, AServerThatHangsCostsTheDeadlineAndNoMore) {
  auto& store = open(options());
  ASSERT_TRUE(put_page(store, 1));
  server_.suspend();
  auto bytes = page_bytes(page_size);
  const auto reads = std::vector{page_read{key_of(1), {bytes}}};
  EXPECT_EQ(code_of(store.get(reads, clock_.now() + milliseconds{50}).at(0)),
            ec::deadline_exceeded);
  server_.resume();
  clock_.advance(redis_pause_max);
  expect_page(store, 1);
}

TEST_F(RedisBackendTest, SilenceWithoutADeadlineEnds) {
  auto wanted = options();
  wanted.servers.timeout = milliseconds{100};
  auto& store = open(wanted);
  server_.suspend();
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::peer_unreachable);
  server_.resume();
}

TEST_F(RedisBackendTest, NamesThePasswordNowhere) {
  server_.ask({"ACL", "SETUSER", "kv", "on", ">se cret", "~hicache:*", "+@all"});
  auto wanted = options();
  wanted.servers.access.user = "kv";
  wanted.servers.access.password_file = server_.folder() + "/password";
  std::ofstream{wanted.servers.access.password_file} << "se cret\nnext line\n";
  auto& store = open(wanted);
  ASSERT_TRUE(put_page(store, 1));
  expect_page(store, 1);
  std::ofstream{wanted.servers.access.password_file} << "wrong one\n";
  const auto refused = make_redis_backend(wanted, clock_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::io_failure);
  EXPECT_EQ(refused.error().detail.find("wrong one"), std::string::npos) << refused.error().detail;
  EXPECT_NE(refused.error().detail.find("WRONGPASS"), std::string::npos) << refused.error().detail;
  wanted.servers.access.password_file = server_.folder() + "/none";
  EXPECT_EQ(code_of(make_redis_backend(wanted, clock_)), ec::invalid_argument);
}

TEST_F(RedisBackendTest, UsersWithoutRightsAreRefusedAndNotRemoved) {
  auto& store = open(options());
  ASSERT_TRUE(put_page(store, 1));
  server_.ask({"ACL", "SETUSER", "default", "-get"});
  EXPECT_EQ(code_of(take(store, key_of(1), page_size)), ec::io_failure);
  server_.ask({"ACL", "SETUSER", "default", "+get"});
  expect_page(store, 1);
}

TEST_F(RedisBackendTest, RefusesOptionsInASentence) {
  const auto complaint = [&](auto change) {
    auto wanted = options();
    change(wanted);
    const auto made = make_redis_backend(wanted, clock_);
    return made ? std::string{} : made.error().detail;
  };
  EXPECT_NE(complaint([](auto& x) { x.servers.servers.clear(); }).find("expected HOST:PORT"),
            std::string::npos);
  EXPECT_NE(complaint([](auto& x) {
              x.servers.servers.push_back({"localhost", 1});
            }).find("\"redis_cluster\": true"),
            std::string::npos);
  EXPECT_NE(complaint([](auto& x) { x.key_prefix = "{a}"; }).find("key_prefix '{a}'"),
            std::string::npos);
  EXPECT_NE(complaint([](auto& x) { x.chunk_bytes = 1; }).find("expected 4.0 KiB to 256.0 MiB"),
            std::string::npos);
  EXPECT_NE(complaint([](auto& x) { x.servers.access.user = "kv"; }).find("has no password"),
            std::string::npos);
  EXPECT_NE(complaint([](auto& x) {
              x.servers.access.tls.is_used = true;
              x.servers.access.tls.ca_file = "/none";
            }).find("tls_ca: '/none'"),
            std::string::npos);
  server_.kill();
  EXPECT_NE(complaint([](auto&) {}).find("Connection refused"), std::string::npos);
}

TEST(RedisTls, EncryptsAndChecksTheServer) {
  const auto folder = temporary_folder{};
  const auto files = authority{"test"}.sign_into(folder.path());
  auto access = redis_access{};
  access.tls = {true, files.ca, files.certificate, files.key, "process"};
  auto server = redis_server{{.arguments = {"--tls-cert-file", files.certificate, "--tls-key-file",
                                            files.key, "--tls-ca-cert-file", files.ca},
                              .access = access}};
  const auto clock = manual_clock{};
  auto wanted = options_for({server.where()});
  wanted.servers.access = access;
  auto store = make_redis_backend(wanted, clock);
  ASSERT_TRUE(store) << store.error().detail;
  // Several records, and replies that come in the middle of one.
  constexpr auto size = size_t{3} << 20;
  ASSERT_TRUE(put(**store, key_of(1), bytes_of(1, size)));
  EXPECT_EQ(take(**store, key_of(1), size).value(), bytes_of(1, size));
  auto stranger = wanted;
  stranger.servers.access.tls.server_name = "other";
  EXPECT_NE(make_redis_backend(stranger, clock).error().detail.find("mismatch"), std::string::npos);
  auto open = wanted;
  open.servers.access.tls = {};
  open.servers.timeout = milliseconds{500};
  EXPECT_FALSE(make_redis_backend(open, clock)) << "the port speaks TLS alone";
}

/// A cluster whose slots move.
class RedisClusterTest : public testing::Test {
protected:
  RedisClusterTest() {
    auto store = make_redis_backend(options_for({cluster_.node(0).where()}, true), clock_);
    EXPECT_TRUE(store) << store.error().detail;
    store_ = std::move(store.value());
    for (auto number = uint64_t{0}; number < pages; ++number)
      EXPECT_TRUE(put(*store_, key_of(number), bytes_of(number, page_size)));
  }

  void expect_all() {
    auto bytes = std::vector<page_bytes>(pages, page_bytes(page_size));
    auto reads = std::vector<page_read>{};
    for (auto number = uint64_t{0}; number < pages; ++number)
      reads.push_back({key_of(number), {bytes[number]}});
    const auto answers = store_->get(reads, no_deadline);
    for (auto number = uint64_t{0}; number < pages; ++number) {
      EXPECT_TRUE(answers[number]) << to_string(answers[number].error());
      EXPECT_EQ(bytes[number], bytes_of(number, page_size));
    }
  }

  /// A key whose slot the node serves.
  page_key key_on(size_t node) {
    for (auto number = uint64_t{0};; ++number)
      if (&cluster_.node_of(redis_slot(to_string(key_of(number)))) == &cluster_.node(node))
        return key_of(number);
  }

  static constexpr auto pages = uint64_t{30};

  manual_clock clock_;
  redis_cluster cluster_;
  std::unique_ptr<blocking_store> store_;
};

TEST_F(RedisClusterTest, FollowsSlotsWhileAndAfterTheyMove) {
  const auto key = key_on(0);
  const auto slot = std::to_string(redis_slot(to_string(key)));
  const auto name = redis_name("hicache:", key);
  const auto target = cluster_.node(1).where();
  cluster_.node(1).ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", cluster_.id(0)});
  cluster_.node(0).ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", cluster_.id(1)});
  expect_all();
  const auto moved = cluster_.node(0).ask(
    {"MIGRATE", target.host, std::to_string(target.port), name, "0", "5000"});
  EXPECT_EQ(moved.text, "OK");
  expect_all(); // By ASK.
  for (const auto node : {1u, 0u})
    cluster_.node(node).ask({"CLUSTER", "SETSLOT", slot, "NODE", cluster_.id(1)});
  expect_all(); // By MOVED.
  EXPECT_TRUE(drop(*store_, key));
  EXPECT_FALSE(has(*store_, key));
}

TEST_F(RedisClusterTest, WhatOtherNodesHaveIsServedWhenOneIsGone) {
  for (const auto node : {0u, 1u, 2u})
    cluster_.node(node).ask({"CONFIG", "SET", "cluster-require-full-coverage", "no"});
  const auto there = key_on(1);
  const auto gone = key_on(2);
  cluster_.node(2).kill();
  auto bytes = std::vector<page_bytes>(2, page_bytes(page_size));
  const auto answers = store_->get(
    std::vector{page_read{there, {bytes[0]}}, page_read{gone, {bytes[1]}}}, no_deadline);
  EXPECT_TRUE(answers[0]) << to_string(answers[0].error());
  EXPECT_EQ(code_of(answers[1]), ec::peer_unreachable);
  EXPECT_FALSE(store_->health().ok);
}

} // namespace
} // namespace hicache::test
