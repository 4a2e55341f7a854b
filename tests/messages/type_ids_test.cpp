// CAF loses messages of types that were not announced without reporting an error: the receiver sees
// an empty message. So the round trip is proved for each entry of the type-id block, and nobody can
// forget one.

#include "messages/system_config.hpp"
#include "messages/type_ids.hpp"

#include <caf/actor_system.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/message.hpp>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace hicache {
namespace {

class TypeIdWorld {
protected:
  TypeIdWorld() : system(testing(config)) {}

  result<caf::message> round_trip(caf::message sent) {
    auto bytes = std::vector<char>{};
    auto sink = caf::binary_serializer{system, bytes};
    if (auto err = sink(sent))
      return tl::unexpected{from_caf(err)};
    auto received = caf::message{};
    auto source = caf::binary_deserializer{system, bytes};
    if (auto err = source(received))
      return tl::unexpected{from_caf(err)};
    return received;
  }

  static system_config& testing(system_config& x) {
    x.set("scheduler.policy", caf::atom("testing"));
    return x;
  }

  system_config config;
  caf::actor_system system;
};

template <class T>
class TypeIdsTest : public ::testing::Test, protected TypeIdWorld {};

template <class Indices>
struct block_types;

template <size_t... Is>
struct block_types<std::index_sequence<Is...>> {
  using type = ::testing::Types<typename caf::type_by_id<static_cast<caf::type_id_t>(
    caf::id_block::hicache::begin + Is)>::type...>;
};

using every_type = block_types<
  std::make_index_sequence<caf::id_block::hicache::end - caf::id_block::hicache::begin>>::type;

TYPED_TEST_SUITE(TypeIdsTest, every_type);

TYPED_TEST(TypeIdsTest, SurvivesRoundTripAsMessage) {
  const auto received = this->round_trip(caf::make_message(TypeParam{}));
  ASSERT_TRUE(received) << to_string(received.error());
  EXPECT_TRUE(received->template match_elements<TypeParam>());
}

class MessageTest : public ::testing::Test, protected TypeIdWorld {};

TEST_F(MessageTest, ValuesArriveWithWhatTheyHold) {
  auto sent = withdrawn_pages{7, 3, std::vector<page_key>(5)};
  sent.keys[4].bytes[31] = 9;
  const auto received = round_trip(caf::make_message(atom::withdraw_v, sent));
  ASSERT_TRUE(received);
  ASSERT_TRUE((received->match_elements<atom::withdraw, withdrawn_pages>()));
  EXPECT_EQ(received->get_as<withdrawn_pages>(1), sent);
}

TEST_F(MessageTest, ErrorsArriveWithCodeAndDetail) {
  const auto sent = error{ec::limit_reached, "too many members"};
  const auto received = round_trip(caf::make_message(to_caf(sent)));
  ASSERT_TRUE(received);
  ASSERT_TRUE(received->match_elements<caf::error>());
  EXPECT_EQ(from_caf(received->get_as<caf::error>(0)), sent);
}

TEST_F(MessageTest, FramesBeyondTheLimitAreRefusedUnread) {
  auto bytes = std::vector<char>{};
  auto sink = caf::binary_serializer{system, bytes};
  auto count = limits::wire_words + 1;
  ASSERT_FALSE(sink(count));
  auto source = caf::binary_deserializer{system, bytes};
  auto batch = key_batch{};
  const auto err = inspect(source, batch);
  EXPECT_EQ(from_caf(err).code, ec::malformed_message);
}

TEST_F(MessageTest, FramesShorterThanTheyClaimAreRefused) {
  auto bytes = std::vector<char>{};
  auto sink = caf::binary_serializer{system, bytes};
  auto sent = heartbeat{1, 2, {}};
  ASSERT_FALSE(inspect(sink, sent));
  bytes.resize(bytes.size() - 1);
  auto source = caf::binary_deserializer{system, bytes};
  auto received = heartbeat{};
  EXPECT_TRUE(inspect(source, received));
}

// What shares memory must not leave the process by accident.
static_assert(!wire::wire_type<tree_operations>);
static_assert(!wire::wire_type<storage_batch>);
static_assert(!wire::wire_type<segment_slots>);
static_assert(!wire::wire_type<rank_counters>);
static_assert(!wire::wire_type<int>);
static_assert(wire::wire_type<published_pages>);

} // namespace
} // namespace hicache
