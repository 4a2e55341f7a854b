// What processes of neighbouring versions send.

#include "messages/wire.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace hicache {
namespace {

/// What a process of version 4 sent for itself: it knew of no address for requests.
constexpr auto member_of_version_4 = std::to_array<uint64_t>(
  {0x0000001200000000, 0x0003000900000000, 0x0000000000000011, 0x0000000000000003,
   0x0000000000000004, 0x0000000000001000, 0x0000000000000063, 0x0000000000000400,
   0x0000000000000800, 0x0000000000000040, 0x0000000000000002, 0x0000003200000009,
   0x0000005a00000009, 0x000000720000000d, 0x0000003765646f6e, 0x656863616369682f,
   0x000000000000782d, 0x372e302e302e3031, 0x000000303030343a});

/// The same of a version to come, with two fields that this one does not know.
constexpr auto member_of_version_7 = std::to_array<uint64_t>(
  {0x0000001a00000000, 0x0005000b00000000, 0x0000000000000011, 0x0000000000000003,
   0x0000000000000007, 0x0000000000001000, 0x0000000000000063, 0x0000000000000000,
   0x0000000000000000, 0x0000000000000000, 0x0000000000000000, 0x0000000000000002,
   0x0000000000000005, 0x0000003200000011, 0x0000005a00000011, 0x0000007200000015,
   0x0000007200000019, 0x000000720000001d, 0x0000003765646f6e, 0x656863616369682f,
   0x000000000000782d, 0x372e302e302e3031, 0x000000303030343a, 0x372e302e302e3031,
   0x000000313030343a, 0x662065687420666f, 0x0000006572757475});

TEST(WireVersionsTest, AMessageOfTheVersionBeforeIsUnderstood) {
  auto expected = member_info{};
  expected.member = 17;
  expected.epoch = 3;
  expected.protocol_version = 4;
  expected.host = "node7";
  expected.memory_name = "/hicache-x";
  expected.page_address = "10.0.0.7:4000";
  expected.capacity_bytes = 4096;
  expected.fingerprint = 99;
  expected.exported = {1024, 2048, 64, 2};
  EXPECT_EQ(wire::codec<member_info>::decode(member_of_version_4), expected);
  expected.protocol_version = 7;
  expected.address = "10.0.0.7:4001";
  expected.exported = {};
  expected.resumes = 2;
  EXPECT_EQ(wire::codec<member_info>::decode(member_of_version_7), expected)
    << "what is not known is ignored";
}

} // namespace
} // namespace hicache
