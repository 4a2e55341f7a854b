#include "backends/page_checksum.hpp"

#include "base/check.hpp"

#include <xxhash.h>

#include <memory>

namespace hicache {

namespace {

struct free_state {
  void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
};

template <class Byte>
uint64_t checksum(std::span<const std::span<Byte>> parts) {
  if (parts.size() == 1)
    return XXH3_64bits(parts[0].data(), parts[0].size());
  const auto state = std::unique_ptr<XXH3_state_t, free_state>{XXH3_createState()};
  HICACHE_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  for (const auto& part : parts)
    if (!part.empty())
      HICACHE_CHECK(XXH3_64bits_update(state.get(), part.data(), part.size()) == XXH_OK);
  return XXH3_64bits_digest(state.get());
}

} // namespace

uint64_t page_checksum(std::span<const std::span<const std::byte>> parts) {
  return checksum(parts);
}

uint64_t page_checksum(std::span<const std::span<std::byte>> parts) {
  return checksum(parts);
}

} // namespace hicache
