#pragma once

#include "hicache/error.hpp"
#include "identity/tensor_file.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Some bytes of a file.
struct file_range {
  const input_file* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Digests of ranges, by XXH3 of 128 bits, as 16 bytes each. All bytes are read, by several
/// threads: a range of more than a few MiB is cut into pieces of equal length, and its digest is
/// that of its pieces' digests. So the digest does not depend on the number of threads. Blocks.
/// @param progress Called by one thread at a time with the bytes read and the total; may be empty.
/// @returns invalid_argument with a sentence about a file that cannot be read
result<std::vector<std::string>> digests_of(std::span<const file_range> ranges,
                                            const std::function<void(uint64_t, uint64_t)>& progress
                                            = {});

/// The digest of a text, as 32 hexadecimal digits.
std::string digest_of_text(std::string_view text);

} // namespace hicache
