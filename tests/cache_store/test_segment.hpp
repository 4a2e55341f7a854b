#pragma once

#include "cache/store/segment_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

/// Pages for a segment table.
namespace hicache::test {

inline constexpr auto no_time = time_point{};

inline segment_request page(uint64_t number, uint64_t bytes = 1,
                            std::optional<uint64_t> parent = {}, uint64_t tenant = 0) {
  auto wanted
    = segment_request{key_of(number), {}, bytes, static_cast<uint32_t>(number), 0, tenant};
  if (parent)
    wanted.parent = key_of(*parent);
  return wanted;
}

inline reservation reserve(segment_table& table, const segment_request& wanted) {
  return table.reserve(wanted, no_time);
}

/// Reserves and publishes; expects room.
inline reservation store(segment_table& table, const segment_request& wanted) {
  auto got = reserve(table, wanted);
  EXPECT_EQ(got.status, reserve_status::reserved);
  EXPECT_TRUE(table.publish(wanted.key, got.generation));
  return got;
}

inline std::vector<page_key> evicted_by(const reservation& got) {
  auto keys = std::vector<page_key>{};
  for (const auto& gone : got.evicted)
    keys.push_back(gone.key);
  return keys;
}

/// Room for `pages` pages of one byte.
inline segment_table table_of(uint64_t pages) {
  return segment_table{pages, {}};
}

} // namespace hicache::test
