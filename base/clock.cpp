#include "hicache/clock.hpp"

namespace hicache {

time_point monotonic_clock::now() const noexcept {
  return std::chrono::steady_clock::now();
}

} // namespace hicache
