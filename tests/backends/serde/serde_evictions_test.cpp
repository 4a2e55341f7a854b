#include "backends/tiered/tiered_backend.hpp"
#include "cache/hash/page_hash.hpp"
#include "tests/backends/serde/serde_fixture.hpp"

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hicache::test {
namespace {

/// A decorator over memory that has room for two encoded objects of 64 bytes.
class EvictingStoreTest : public serde_test {
protected:
  struct told_object {
    page_key parent;
    page_bytes bytes;
    uint64_t tenant = 0;
  };

  std::unique_ptr<storage_queue> small_memory() {
    constexpr auto room = 2 * (serde::object_header_bytes + 64);
    return std::make_unique<storage_queue>(make_memory_backend(room, clock_), 0);
  }

  /// Has the store tell what it evicts.
  bool watch(storage_backend& store, bool wants_bytes) {
    return store.watch_evictions(
      [this](std::span<const evicted_object> objects) {
        for (const auto& x : objects)
          told_[x.key] = {x.parent, {x.bytes.begin(), x.bytes.end()}, x.tenant};
      },
      wants_bytes);
  }

  /// Writes an object of a tenant, on the one before.
  static void put_page(waiting_store& store, uint64_t number) {
    const auto bytes = bytes_of(number, 64);
    const auto page = page_write{key_of(number), key_of(number - 1), {bytes}, number};
    ASSERT_TRUE(store.set(std::vector{page}, no_deadline)[0]);
  }

  std::map<page_key, told_object> told_;
};

TEST_F(EvictingStoreTest, WhatIsEvictedIsToldAsItWasBeforeEncoding) {
  for (const auto* chain : {"zstd", "aes-256-gcm", "lz4+aes-256-gcm"}) {
    told_.clear();
    auto store = open(options(chain), small_memory());
    ASSERT_TRUE(watch(store.backend(), true));
    for (const auto number : {1u, 2u, 3u})
      put_page(store, number);
    ASSERT_EQ(told_.size(), 1u) << chain;
    const auto& [key, object] = *told_.begin();
    EXPECT_EQ(key, key_of(1));
    EXPECT_EQ(object.parent, key_of(0));
    EXPECT_EQ(object.bytes, bytes_of(1, 64));
    EXPECT_EQ(object.tenant, 1u);
    ASSERT_TRUE(store.backend().watch_evictions({}, true));
    put_page(store, 4);
    EXPECT_EQ(told_.size(), 1u);
  }
}

TEST_F(EvictingStoreTest, WhatDoesNotDecodeIsToldWithoutBytes) {
  auto memory = small_memory();
  auto& inner = *memory;
  auto store = open(options("aes-256-gcm"), std::move(memory));
  ASSERT_TRUE(watch(store.backend(), true));
  const auto name = one_codec {
    "aes-256-gcm"
    } -> object_name(key_of(1));
  const auto damaged = bytes_of(1, serde::object_header_bytes + 64);
  const auto written = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    inner.write(std::vector{page_write{name, {}, {damaged}}}, no_deadline, done);
  });
  ASSERT_TRUE(written[0]);
  for (const auto number : {2u, 3u, 4u})
    put_page(store, number);
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_.at(key_of(1)).bytes, page_bytes{});
  EXPECT_EQ(told_.at(key_of(2)).bytes, bytes_of(2, 64));
}

TEST_F(EvictingStoreTest, BytesAreNotToldUnwantedNorLossy) {
  auto plain = open(options("zstd"), small_memory());
  ASSERT_TRUE(watch(plain.backend(), false));
  for (const auto number : {1u, 2u, 3u})
    put_page(plain, number);
  EXPECT_EQ(told_.at(key_of(1)).bytes, page_bytes{});
  auto lossy = open(options("fp8"), small_memory());
  EXPECT_FALSE(watch(lossy.backend(), true));
  EXPECT_TRUE(watch(lossy.backend(), false));
}

TEST_F(EvictingStoreTest, ATierBelowTakesWhatATierWithCodecsEvicts) {
  auto tiers = tiered_options{};
  auto above = make_serde_backend(options("zstd+aes-256-gcm"), small_memory(), clock_);
  ASSERT_TRUE(above);
  tiers.tiers.push_back({std::move(above.value()), {}});
  tiers.tiers.push_back(
    {std::make_unique<shared_store>(memory_), {parse_tier_writes("evict").value(), false}});
  auto store = waiting_store{make_tiered_backend(std::move(tiers), clock_).value()};
  for (const auto number : {1u, 2u, 3u})
    put_page(store, number);
  // The copy may be on its way.
  while (!has(bare_, key_of(1)))
    std::this_thread::yield();
  EXPECT_EQ(take(bare_, key_of(1), 64), bytes_of(1, 64));
  EXPECT_FALSE(has(bare_, key_of(2)));
}

TEST_F(EvictingStoreTest, ATierBelowEncryptsWithTheTenantsKey) {
  auto tiers = tiered_options{};
  tiers.tiers.push_back({small_memory(), {}});
  auto below
    = make_serde_backend(options("aes-256-gcm"), std::make_unique<shared_store>(memory_), clock_);
  ASSERT_TRUE(below);
  tiers.tiers.push_back({std::move(below.value()), {parse_tier_writes("evict").value(), false}});
  auto store = waiting_store{make_tiered_backend(std::move(tiers), clock_).value()};
  const auto tenant = tenant_of("a tenant");
  for (auto number = uint64_t{1}; number <= 6; ++number) {
    const auto bytes = bytes_of(number, 64);
    const auto page = page_write{key_of(number), {}, {bytes}, number == 1 ? tenant : 0};
    ASSERT_TRUE(store.set(std::vector{page}, no_deadline)[0]);
  }
  for (const auto& [number, key] : {std::pair{1u, "its"}, std::pair{2u, "new"}}) {
    // The copy may be on its way.
    while (!has(
      bare_, one_codec { "aes-256-gcm" } -> object_name(key_of(number))))
      std::this_thread::yield();
    EXPECT_EQ(serde::decode_object_header(encoded("aes-256-gcm", number, 64))->key_id, key);
  }
}

} // namespace
} // namespace hicache::test
