#pragma once

#include "tests/model/sequence.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace hicache::test {

/// A random sequence for one of the many kinds of cache: every policy, page size, write policy and
/// view of tokens in turn, tiers of all small sizes. Alphabets are small, so that prefixes meet.
/// Ends by closing everything and clearing the cache, so that a lost page shows. Equal arguments
/// give equal sequences, whatever the platform.
/// @param actions About how many; the closing ones come on top.
sequence generate(uint64_t seed, copy_time copies, size_t actions);

/// The same with bytes for chance, as long as they last: for a fuzzer.
sequence generate_from(std::span<const uint8_t> bytes);

} // namespace hicache::test
