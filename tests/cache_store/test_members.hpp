#pragma once

#include "cache/store/index_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <cstdint>
#include <string>

namespace hicache::test {

inline member_info member(uint64_t id, uint64_t epoch = 1) {
  return {id,
          epoch,
          index_protocol_version,
          "host-" + std::to_string(id),
          "memory",
          "10.0.0.1:7",
          "10.0.0.1:8",
          1 << 20,
          1 << 10,
          {}};
}

} // namespace hicache::test
