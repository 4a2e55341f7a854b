#include "base/limits.hpp"
#include "messages/wire.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <random>
#include <string>

namespace hicache {
namespace {

using random_engine = std::mt19937_64;

// -- random values of every type ----------------------------------------------

size_t small(random_engine& random) {
  return random() % 5;
}

void fill(page_key& x, random_engine& random) {
  for (auto& byte : x.bytes)
    byte = static_cast<uint8_t>(random());
}

void fill(std::string& x, random_engine& random) {
  x.resize(random() % 40);
  std::ranges::generate(x, [&] { return static_cast<char>('a' + random() % 26); });
}

void fill(uint64_t& x, random_engine& random) {
  x = random() >> (random() % 64);
}

// Elements of lists; declared here because the template below looks them up by plain name.
void fill(announced_page& x, random_engine& random);
void fill(replica& x, random_engine& random);
void fill(replica_list& xs, random_engine& random);
void fill(member_info& x, random_engine& random);
void fill(member_state& x, random_engine& random);
void fill(copied_page& x, random_engine& random);
void fill(wanted_page& x, random_engine& random);
void fill(page_place& x, random_engine& random);
void fill(complete_page& x, random_engine& random);
void fill(node_client_state& x, random_engine& random);

template <class List>
void fill_list(List& xs, random_engine& random) {
  xs.resize(small(random));
  for (auto& x : xs)
    fill(x, random);
}

void fill(replica_list& xs, random_engine& random) {
  fill_list(xs, random);
}

template <class T>
void fill(std::vector<T>& xs, random_engine& random) {
  fill_list(xs, random);
}

void fill(member_info& x, random_engine& random) {
  fill(x.member, random);
  fill(x.epoch, random);
  x.protocol_version = static_cast<uint32_t>(random());
  fill(x.host, random);
  fill(x.memory_name, random);
  fill(x.page_address, random);
  fill(x.address, random);
  fill(x.capacity_bytes, random);
  fill(x.fingerprint, random);
  x.exported = {random() >> 1, random() >> 1, 1 + (random() >> 40), random() >> 40};
  fill(x.resumes, random);
  x.is_closed = random() % 2 == 0;
}

void fill(shard_map& x, random_engine& random) {
  x.shards.resize(small(random));
  for (auto i = size_t{0}; i < x.shards.size(); ++i) {
    x.shards[i].number = static_cast<uint32_t>(2 * i + random() % 2);
    fill(x.shards[i].address, random);
    fill(x.shards[i].epoch, random);
  }
}

void fill(membership& x, random_engine& random) {
  x.known = random() % 2 == 0;
  fill(x.member_ttl_ms, random);
  fill(x.shards_digest, random);
  fill(x.refused, random);
  fill(x.lost, random);
  x.resumed = random() % 2 == 0;
  x.takes_disk = random() % 2 == 0;
}

void fill(member_counters& x, random_engine& random) {
  for (auto* field : {&x.hits, &x.misses, &x.errors, &x.corrupt, &x.evicted, &x.pinned_bytes})
    fill(*field, random);
}

void fill(heartbeat& x, random_engine& random) {
  fill(x.member, random);
  fill(x.epoch, random);
  fill(x.counters, random);
  x.leaves = random() % 2 == 0;
  x.is_closed = random() % 2 == 0;
}

void fill(announced_page& x, random_engine& random) {
  fill(x.key, random);
  fill(x.offset, random);
  x.generation = static_cast<uint32_t>(random());
  x.length = static_cast<uint32_t>(random() % (limits::page_bytes + 1));
}

void fill(published_pages& x, random_engine& random) {
  fill(x.member, random);
  fill(x.epoch, random);
  fill(x.pages, random);
  x.seconds = static_cast<uint32_t>(random() % (x.pages.size() + 1));
  x.only_new = random() % 2 == 0;
}

void fill(withdrawn_pages& x, random_engine& random) {
  fill(x.member, random);
  fill(x.epoch, random);
  fill(x.keys, random);
}

void fill(key_batch& x, random_engine& random) {
  fill(x.keys, random);
  x.with_disk = random() % 2 == 0;
}

void fill(awaited_pages& x, random_engine& random) {
  fill(x.keys, random);
  for (auto i = size_t{0}; i < x.keys.size(); ++i)
    x.known.push_back(static_cast<uint8_t>(random()));
  x.wait_ms = static_cast<uint32_t>(random());
}

void fill(replica& x, random_engine& random) {
  fill(x.member, random);
  fill(x.offset, random);
  x.generation = static_cast<uint32_t>(random());
  x.length = static_cast<uint32_t>(random() % (limits::page_bytes + 1));
}

void fill(placements& x, random_engine& random) {
  fill(x.shards_digest, random);
  fill(x.replicas, random);
  x.is_partial = random() % 2 == 0;
}

void fill(member_query& x, random_engine& random) {
  fill(x.members, random);
  fill(x.from, random);
  x.most = static_cast<uint32_t>(random());
}

void fill(member_list& x, random_engine& random) {
  fill(x.members, random);
  x.has_more = random() % 2 == 0;
}

void fill(status_query& x, random_engine& random) {
  fill(x.from, random);
  x.most = static_cast<uint32_t>(random());
}

void fill(member_state& x, random_engine& random) {
  fill(x.info, random);
  fill(x.counters, random);
  for (auto* field : {&x.pages, &x.bytes, &x.silent_ms, &x.disk_pages, &x.disk_bytes})
    fill(*field, random);
}

void fill(index_status& x, random_engine& random) {
  fill(x.members, random);
  for (auto* field :
       {&x.keys, &x.replicas, &x.bytes, &x.lookups, &x.keys_asked, &x.keys_found, &x.members_lost,
        &x.uptime_ms, &x.second_keys, &x.disk_replicas, &x.disk_bytes})
    fill(*field, random);
}

void fill(page_totals& x, random_engine& random) {
  fill(x.pages, random);
  fill(x.bytes, random);
}

void fill(page_pins& x, random_engine& random) {
  x.kind = random() % 3;
  fill(x.ttl_ms, random);
  fill(x.keys, random);
}

void fill(namespace_pages& x, random_engine& random) {
  fill(x.fingerprint, random);
  x.evict_first = random() % 2 == 0;
}

void fill(copied_page& x, random_engine& random) {
  fill(x.page, random);
  fill(x.parent, random);
  for (auto* field : {&x.fingerprint, &x.tenant, &x.pin_ttl_ms})
    fill(*field, random);
  x.pin = random() % 3;
  x.copies = random() % (limits::replicas_per_key + 1);
}

void fill(page_copies& x, random_engine& random) {
  fill(x.source, random);
  fill(x.pages, random);
}

void fill(page_recall& x, random_engine& random) {
  fill(x.fingerprint, random);
  fill(x.keys, random);
  x.wait_ms = static_cast<uint32_t>(random());
}

void fill(drain_request& x, random_engine& random) {
  x.force = random() % 2 == 0;
}

void fill(drain_report& x, random_engine& random) {
  fill(x.moved, random);
  fill(x.withdrawn, random);
}

void fill(drain_progress& x, random_engine& random) {
  x.is_draining = random() % 2 == 0;
  x.is_closed = random() % 2 == 0;
  for (auto* field : {&x.pages, &x.tried, &x.moved})
    fill(*field, random);
}

void fill(client_info& x, random_engine& random) {
  fill(x.tenant, random);
  fill(x.fingerprint, random);
}

void fill(node_info& x, random_engine& random) {
  fill(x.memory_name, random);
  fill(x.memory_bytes, random);
  fill(x.lease_ms, random);
}

void fill(wanted_page& x, random_engine& random) {
  fill(x.key, random);
  fill(x.parent, random);
  x.length = static_cast<uint32_t>(random()); // Whoever answers looks at it.
}

void fill(wanted_pages& x, random_engine& random) {
  fill(x.pages, random);
}

void fill(page_place& x, random_engine& random) {
  x.status = static_cast<place_status>(random() % 3);
  fill(x.offset, random);
  x.generation = static_cast<uint32_t>(random());
  x.length = static_cast<uint32_t>(random() % (limits::page_bytes + 1));
}

void fill(reserved_pages& x, random_engine& random) {
  fill(x.reservation, random);
  fill(x.places, random);
}

void fill(complete_page& x, random_engine& random) {
  fill(x.key, random);
  fill(x.checksum, random);
}

void fill(complete_pages& x, random_engine& random) {
  fill(x.reservation, random);
  fill(x.pages, random);
}

void fill(client_ticket& x, random_engine& random) {
  fill(x.number, random);
}

void fill(page_lookup& x, random_engine& random) {
  fill(x.keys, random);
  x.is_chain = random() % 2 == 0;
  fill(x.lease_ms, random);
  fill(x.wait_ms, random);
}

void fill(leased_pages& x, random_engine& random) {
  fill(x.lease, random);
  fill(x.lease_ms, random);
  fill(x.places, random);
}

void fill(page_prefetch& x, random_engine& random) {
  fill(x.keys, random);
  x.is_chain = random() % 2 == 0;
  fill(x.wait_ms, random);
}

void fill(node_client_state& x, random_engine& random) {
  fill(x.client, random);
  fill(x.info, random);
  for (auto* field : {&x.reserved_bytes, &x.leased_bytes, &x.pages, &x.requests,
                      &x.traffic.pages_written, &x.traffic.bytes_written, &x.traffic.pages_wanted,
                      &x.traffic.pages_found, &x.traffic.bytes_found})
    fill(*field, random);
}

void fill(node_status& x, random_engine& random) {
  fill(x.clients, random);
  x.has_more = random() % 2 == 0;
  for (auto* field : {&x.client_count, &x.reserved_bytes, &x.leased_bytes, &x.reservations,
                      &x.leases, &x.expired_leases, &x.refused, &x.capacity_bytes, &x.used_bytes,
                      &x.pages, &x.evicted, &x.pages_wanted, &x.pages_found, &x.pages_written,
                      &x.pages_kept, &x.pages_dropped, &x.unscanned_bytes})
    fill(*field, random);
  for (auto* field : {&x.disk_capacity_bytes, &x.disk_bytes, &x.disk_pages, &x.disk_pages_read,
                      &x.disk_pages_written, &x.disk_pages_skipped, &x.disk_pages_failed})
    fill(*field, random);
  fill(x.disk_stores, random);
}

// -- what no decoded value may exceed -----------------------------------------

/// By default what has keys has as many as one message holds: limits::node_batch_pages is the same.
bool is_bounded(const auto& x) {
  if constexpr (requires { x.keys.size(); })
    return x.keys.size() <= limits::index_batch_keys;
  else
    return true;
}

bool is_bounded(const member_info& x) {
  return x.host.size() <= 256 && x.memory_name.size() <= 256 && x.page_address.size() <= 256;
}

bool is_bounded(const published_pages& x) {
  for (const auto& page : x.pages)
    if (page.length > limits::page_bytes)
      return false;
  return x.pages.size() <= limits::index_batch_keys && x.seconds <= x.pages.size();
}

bool is_bounded(const awaited_pages& x) {
  return x.keys.size() <= limits::index_batch_keys && x.known.size() == x.keys.size();
}

bool is_bounded(const placements& x) {
  for (const auto& copies : x.replicas)
    if (copies.size() > limits::replicas_per_key)
      return false;
  return x.replicas.size() <= limits::index_batch_keys;
}

bool is_bounded(const member_query& x) {
  return x.members.size() <= limits::index_batch_keys;
}

template <class T>
requires std::same_as<T, member_list> || std::same_as<T, index_status>
bool is_bounded(const T& x) {
  return x.members.size() <= limits::index_members;
}

bool is_bounded(const page_pins& x) {
  return x.kind <= 2 && x.keys.size() <= limits::index_batch_keys;
}

bool is_bounded(const page_copies& x) {
  for (const auto& copied : x.pages)
    if (copied.page.length > limits::page_bytes || copied.pin > 2
        || copied.parent == copied.page.key)
      return false;
  return x.pages.size() <= limits::storage_batch_pages;
}

bool is_bounded(const page_recall& x) {
  return x.keys.size() <= limits::storage_batch_pages;
}

template <class T>
requires std::same_as<T, wanted_pages> || std::same_as<T, complete_pages>
bool is_bounded(const T& x) {
  return x.pages.size() <= limits::node_batch_pages;
}

bool is_bounded(const leased_pages& x) {
  for (const auto& place : x.places)
    if (place.status > place_status::present || place.length > limits::page_bytes)
      return false;
  return x.places.size() <= limits::node_batch_pages;
}

bool is_bounded(const node_status& x) {
  return x.clients.size() <= limits::node_clients;
}

// -- every codec --------------------------------------------------------------

template <class T>
class WireTest : public ::testing::Test {
protected:
  /// Decoding ends in a bounded value or in malformed_message.
  static void expect_safe(const wire::frame& words) {
    const auto decoded = wire::codec<T>::decode(words);
    if (decoded) {
      EXPECT_TRUE(is_bounded(*decoded));
    } else {
      EXPECT_EQ(decoded.error().code, ec::malformed_message);
    }
  }
};

using every_type = ::testing::Types<
  member_info, shard_map, membership, heartbeat, published_pages, withdrawn_pages, key_batch,
  placements, member_query, member_list, status_query, index_status, page_totals, page_pins,
  namespace_pages, page_copies, drain_request, drain_report, drain_progress, client_info, node_info,
  wanted_pages, reserved_pages, complete_pages, client_ticket, page_lookup, leased_pages,
  page_prefetch, node_status, awaited_pages, page_recall>;

TYPED_TEST_SUITE(WireTest, every_type);

TYPED_TEST(WireTest, RandomValuesSurviveRoundTrip) {
  for (auto seed = 0u; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = random_engine{seed};
    auto sent = TypeParam{};
    fill(sent, random);
    const auto received = wire::codec<TypeParam>::decode(wire::codec<TypeParam>::encode(sent));
    ASSERT_TRUE(received) << to_string(received.error());
    EXPECT_EQ(*received, sent);
  }
}

TYPED_TEST(WireTest, DefaultValuesSurviveRoundTrip) {
  const auto received = wire::codec<TypeParam>::decode(wire::codec<TypeParam>::encode(TypeParam{}));
  ASSERT_TRUE(received);
  EXPECT_EQ(*received, TypeParam{});
}

TYPED_TEST(WireTest, TruncationIsSafeAndNothingIsMalformed) {
  for (auto seed = 0u; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = random_engine{seed};
    auto sent = TypeParam{};
    fill(sent, random);
    auto words = wire::codec<TypeParam>::encode(sent);
    while (!words.empty()) {
      words.pop_back();
      this->expect_safe(words);
    }
    EXPECT_FALSE(wire::codec<TypeParam>::decode(words));
  }
}

TYPED_TEST(WireTest, RandomBitFlipsAreSafe) {
  for (auto seed = 0u; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = random_engine{seed};
    auto sent = TypeParam{};
    fill(sent, random);
    auto words = wire::codec<TypeParam>::encode(sent);
    for (auto flips = 1 + random() % 4; flips > 0; --flips)
      words[random() % words.size()] ^= uint64_t{1} << (random() % 64);
    this->expect_safe(words);
  }
}

TYPED_TEST(WireTest, RandomWordsAreSafe) {
  for (auto seed = 0u; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = random_engine{seed};
    auto words = wire::frame(1 + random() % 30);
    for (auto& word : words)
      word = random() >> (random() % 64);
    words[0] = uint64_t{words.size() - 1} << 32; // One segment of the right length.
    this->expect_safe(words);
  }
}

// -- limits -------------------------------------------------------------------

template <class T>
ec code_of_round_trip(const T& sent) {
  const auto received = wire::codec<T>::decode(wire::codec<T>::encode(sent));
  return received ? ec::none : received.error().code;
}

TEST(WireLimitsTest, AFullBatchSurvives) {
  auto sent = published_pages{1, 1, std::vector<announced_page>(limits::index_batch_keys)};
  auto random = random_engine{1};
  for (auto& page : sent.pages)
    fill(page, random);
  const auto received
    = wire::codec<published_pages>::decode(wire::codec<published_pages>::encode(sent));
  ASSERT_TRUE(received) << to_string(received.error());
  EXPECT_EQ(*received, sent);
}

TEST(WireLimitsTest, FullBatchesOfANodeSurvive) {
  const auto wanted = wanted_pages{std::vector<wanted_page>(limits::node_batch_pages)};
  EXPECT_EQ(code_of_round_trip(wanted), ec::none);
  const auto leased = leased_pages{1, 1, std::vector<page_place>(limits::node_batch_pages)};
  EXPECT_EQ(code_of_round_trip(leased), ec::none);
  auto status = node_status{};
  status.clients.resize(limits::node_clients);
  EXPECT_EQ(code_of_round_trip(status), ec::none);
}

TEST(WireLimitsTest, TheFullestAnswerSurvives) {
  auto sent = placements{};
  sent.replicas.assign(limits::index_batch_keys, replica_list(limits::replicas_per_key));
  const auto received = wire::codec<placements>::decode(wire::codec<placements>::encode(sent));
  ASSERT_TRUE(received) << to_string(received.error());
  EXPECT_EQ(*received, sent);
}

TEST(WireLimitsTest, OneMoreThanTheLimitIsMalformed) {
  const auto beyond = limits::index_batch_keys + 1;
  EXPECT_EQ(code_of_round_trip(key_batch{std::vector<page_key>(beyond)}), ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(awaited_pages{{page_key{}}, {}, 1}), ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(withdrawn_pages{1, 1, std::vector<page_key>(beyond)}),
            ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(published_pages{1, 1, std::vector<announced_page>(beyond)}),
            ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(member_query{std::vector<uint64_t>(beyond)}), ec::malformed_message);
  const auto too_many = limits::node_batch_pages + 1;
  EXPECT_EQ(code_of_round_trip(wanted_pages{std::vector<wanted_page>(too_many)}),
            ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(complete_pages{1, std::vector<complete_page>(too_many)}),
            ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(page_lookup{std::vector<page_key>(too_many)}),
            ec::malformed_message);
  auto answer = placements{};
  answer.replicas.emplace_back(limits::replicas_per_key + 1);
  EXPECT_EQ(code_of_round_trip(answer), ec::malformed_message);
}

TEST(WireLimitsTest, ATextWithAZeroIsMalformed) {
  auto member = member_info{};
  member.host = "rack/host";
  auto words = wire::codec<member_info>::encode(member);
  ASSERT_TRUE(wire::codec<member_info>::decode(words));
  auto* begin = reinterpret_cast<char*>(words.data());
  auto* end = begin + words.size() * sizeof(words[0]);
  auto* slash = std::find(begin, end, '/');
  ASSERT_NE(slash, end);
  *slash = '\0';
  EXPECT_FALSE(wire::codec<member_info>::decode(words));
}

TEST(WireLimitsTest, ElementsWithoutASizeAreNoMoreThanTheMessageHasWords) {
  auto list = member_list{};
  list.members.resize(2);
  auto words = wire::codec<member_list>::encode(list);
  ASSERT_GT(words.size(), 4u);
  // Behind framing, and the root and its data: a list of 50 000 structs of which each has no words.
  words.resize(16);
  words[0] = uint64_t{15} << 32;
  words[3] = uint64_t{1} | uint64_t{7} << 32;
  words[4] = uint64_t{50'000} << 2;
  EXPECT_FALSE(wire::codec<member_list>::decode(words));
  words[4] = uint64_t{2} << 2;
  EXPECT_TRUE(wire::codec<member_list>::decode(words));
}

TEST(WireLimitsTest, OverlongPagesAndTextsAreMalformed) {
  auto page = announced_page{};
  page.length = static_cast<uint32_t>(limits::page_bytes) + 1;
  EXPECT_EQ(code_of_round_trip(published_pages{1, 1, {page}}), ec::malformed_message);
  auto copy = replica{};
  copy.length = page.length;
  EXPECT_EQ(code_of_round_trip(placements{{{copy}}}), ec::malformed_message);
  EXPECT_EQ(code_of_round_trip(published_pages{1, 1, {}, 1}), ec::malformed_message);
  auto member = member_info{};
  member.host = std::string(257, 'x');
  EXPECT_EQ(code_of_round_trip(member), ec::malformed_message);
}

TEST(WireLimitsTest, ExportedObjectsBeyondAllMemoryAreMalformed) {
  auto member = member_info{};
  member.exported = {64, 4096, 4096, 10};
  EXPECT_EQ(code_of_round_trip(member), ec::none);
  for (const auto& exported :
       {exported_objects{64, 4096, 0, 1}, exported_objects{64, 4096, 4096, uint64_t{1} << 60},
        exported_objects{~uint64_t{0}, 4096, 1, 1}, exported_objects{64, ~uint64_t{0}, 1, 1}}) {
    member.exported = exported;
    EXPECT_EQ(code_of_round_trip(member), ec::malformed_message);
  }
}

} // namespace
} // namespace hicache
