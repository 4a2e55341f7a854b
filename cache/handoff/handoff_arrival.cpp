#include "cache/handoff/handoff_arrival.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

handoff_arrival::handoff_arrival(uint32_t layers, uint64_t pages)
  : layers_(layers), missing_(layers * pages) {}

void handoff_arrival::announce(uint32_t layer, uint64_t pages) {
  auto& announced = layers_[layer].announced;
  announced = std::max(announced, pages);
}

std::optional<handoff_arrival::part> handoff_arrival::next(uint64_t most) {
  if (reading_ || is_over())
    return std::nullopt;
  for (auto layer = uint32_t{0}; layer < layers_.size(); ++layer)
    if (const auto& at = layers_[layer]; at.arrived < at.announced) {
      reading_ = part{layer, at.arrived, std::min(at.announced, at.arrived + most)};
      break;
    }
  return reading_;
}

void handoff_arrival::finish(const error& why) {
  HICACHE_CHECK(reading_.has_value());
  const auto read = *std::exchange(reading_, std::nullopt);
  if (why.code == ec::none) {
    layers_[read.layer].arrived = read.end;
    missing_ -= read.end - read.first;
  } else if (why.code != ec::deadline_exceeded) {
    fail(why);
  }
}

void handoff_arrival::fail(const error& why) {
  if (failure_.code == ec::none)
    failure_ = why;
}

} // namespace hicache
