#include "transport/gather.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace hicache {

std::vector<int64_t> gather_offer(uint32_t rank, uint32_t size, std::span<const int64_t> values) {
  HICACHE_CHECK(rank < size);
  auto offer = std::vector<int64_t>(size * values.size(), std::numeric_limits<int64_t>::max());
  std::copy(values.begin(), values.end(),
            offer.begin() + static_cast<std::ptrdiff_t>(rank * values.size()));
  return offer;
}

std::vector<std::span<const int64_t>> gathered(uint32_t size, std::span<const int64_t> reduced) {
  HICACHE_CHECK(size > 0 && reduced.size() % size == 0);
  const auto row_size = reduced.size() / size;
  auto rows = std::vector<std::span<const int64_t>>{};
  rows.reserve(size);
  for (uint32_t rank = 0; rank < size; ++rank)
    rows.push_back(reduced.subspan(rank * row_size, row_size));
  return rows;
}

} // namespace hicache
