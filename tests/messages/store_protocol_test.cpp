#include "messages/store_protocol.hpp"
#include "messages/wire.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace hicache {
namespace {

using random_engine = std::mt19937_64;

std::string some_text(random_engine& random) {
  auto text = std::string(random() % 2000, ' ');
  for (auto& letter : text)
    letter = static_cast<char>(1 + random() % 255);
  return text;
}

page_key some_key(random_engine& random) {
  auto key = page_key{};
  for (auto& byte : key.bytes)
    byte = static_cast<uint8_t>(random());
  return key;
}

void fill(store_hello& x, random_engine& random) {
  x = {static_cast<uint32_t>(random()), random(), some_text(random)};
}

void fill(store_welcome& x, random_engine& random) {
  x = {
    some_text(random), "folder " + std::to_string(random()), random() % 2 == 1, random() % 2 == 1,
    random() % 2 == 1, static_cast<uint32_t>(random()),      random(),          random() % 2 == 1,
    random() % 2 == 1};
}

void fill(store_request& x, random_engine& random) {
  x = {random(),
       static_cast<store_request_kind>(random() % 6),
       static_cast<uint32_t>(random()),
       {},
       some_text(random)};
  for (auto left = random() % 20; left > 0; --left)
    x.objects.push_back({some_key(random), some_key(random), random(), random()});
}

void fill(store_answer& x, random_engine& random) {
  x = {random(), some_text(random), {}, random() % 2 == 1, some_text(random),
       {},       some_text(random)};
  for (auto left = random() % 20; left > 0; --left)
    x.objects.push_back({static_cast<store_status>(random() % 7), random(), some_text(random)});
  for (auto left = random() % 20; left > 0; --left)
    x.listed.push_back({some_key(random), random()});
}

bool is_bounded(const store_hello&) {
  return true;
}

bool is_bounded(const store_welcome&) {
  return true;
}

bool is_bounded(const store_request& x) {
  return x.kind <= store_request_kind::list && x.objects.size() <= store_request_objects;
}

bool is_bounded(const store_answer& x) {
  for (const auto& outcome : x.objects)
    if (outcome.status > store_status::misfit)
      return false;
  return x.objects.size() <= store_request_objects && x.listed.size() <= store_request_objects;
}

template <class T>
class StoreProtocolTest : public testing::Test {
protected:
  /// Decoding ends in malformed_message, or in a bounded value that can be sent on.
  static void expect_safe(const wire::frame& words) {
    const auto decoded = wire::codec<T>::decode(words);
    if (!decoded) {
      EXPECT_EQ(decoded.error().code, ec::malformed_message);
      return;
    }
    EXPECT_TRUE(is_bounded(*decoded));
    const auto again = wire::codec<T>::decode(wire::codec<T>::encode(*decoded));
    ASSERT_TRUE(again) << to_string(again.error());
    EXPECT_EQ(*again, *decoded);
  }
};

using every_message = testing::Types<store_hello, store_welcome, store_request, store_answer>;

TYPED_TEST_SUITE(StoreProtocolTest, every_message);

TYPED_TEST(StoreProtocolTest, RandomMessagesSurviveRoundTrip) {
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

TYPED_TEST(StoreProtocolTest, DamagedAndTruncatedMessagesAreSafe) {
  for (auto seed = 0u; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = random_engine{seed};
    auto sent = TypeParam{};
    fill(sent, random);
    const auto words = wire::codec<TypeParam>::encode(sent);
    for (auto i = 0; i < 100; ++i) {
      auto damaged = words;
      damaged[random() % damaged.size()] ^= uint64_t{1} << (random() % 64);
      if (i % 4 == 0)
        damaged.resize(random() % damaged.size());
      this->expect_safe(damaged);
    }
  }
}

/// A seed is a byte for the fuzzer, which says what follows, and a message.
template <class T>
void expect_seeds(const std::string& kind) {
  auto seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator{HICACHE_FUZZ_CORPUS "/wire_fuzz"}) {
    if (!entry.path().stem().string().starts_with(kind))
      continue;
    auto file = std::ifstream{entry.path(), std::ios::binary};
    const auto bytes = std::string{std::istreambuf_iterator<char>{file}, {}};
    ASSERT_EQ(bytes.size() % sizeof(uint64_t), 1u) << entry.path();
    auto words = std::vector<uint64_t>(bytes.size() / sizeof(uint64_t));
    std::memcpy(words.data(), bytes.data() + 1, bytes.size() - 1);
    const auto message = wire::codec<T>::decode(words);
    ASSERT_TRUE(message) << entry.path() << ": " << to_string(message.error());
    EXPECT_FALSE(*message == T{}) << entry.path();
    ++seeds;
  }
  EXPECT_GT(seeds, 0) << kind;
}

TEST(StoreProtocolSeedsTest, TheFuzzerHasMessagesOfEachKind) {
  expect_seeds<store_hello>("store_hello");
  expect_seeds<store_welcome>("store_welcome");
  expect_seeds<store_request>("store_request");
  expect_seeds<store_answer>("store_answer");
}

TEST(StoreProtocolLimitsTest, ListsAndTextsAreBounded) {
  auto request = store_request{};
  request.objects.resize(store_request_objects);
  EXPECT_TRUE(wire::codec<store_request>::decode(wire::codec<store_request>::encode(request)));
  request.objects.emplace_back();
  EXPECT_FALSE(wire::codec<store_request>::decode(wire::codec<store_request>::encode(request)));
  auto answer = store_answer{};
  answer.listed.resize(store_request_objects);
  EXPECT_TRUE(wire::codec<store_answer>::decode(wire::codec<store_answer>::encode(answer)));
  answer.listed.emplace_back();
  EXPECT_FALSE(wire::codec<store_answer>::decode(wire::codec<store_answer>::encode(answer)));
  answer.listed.clear();
  answer.error.resize(1 << 20, 'x');
  EXPECT_FALSE(wire::codec<store_answer>::decode(wire::codec<store_answer>::encode(answer)));
}

} // namespace
} // namespace hicache
