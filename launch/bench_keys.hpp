#pragma once

#include "cache/hash/page_hash.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace hicache {

/// The namespace of what `hicache-bench store` stores.
inline constexpr std::string_view bench_fingerprint = "hicache-bench";

/// The key of its value of that number.
inline page_key bench_key(uint64_t number) {
  return object_key(page_key{}, object_mask(bench_fingerprint, std::to_string(number)));
}

} // namespace hicache
