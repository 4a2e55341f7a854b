#pragma once

#include "cache/hash/page_hash.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace hicache {

/// Namespace of the values stored by `hicache-bench store`.
inline constexpr std::string_view bench_fingerprint = "hicache-bench";

/// The key of value `number`.
inline page_key bench_key(uint64_t number) {
  return object_key(page_key{}, object_mask(bench_fingerprint, std::to_string(number)));
}

} // namespace hicache
