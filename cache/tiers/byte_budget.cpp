#include "cache/tiers/byte_budget.hpp"

#include <chrono>

namespace hicache {

namespace {

constexpr auto seconds_per_day = 86400.0;

} // namespace

byte_budget::byte_budget(uint64_t per_second, uint64_t per_day) {
  second_.capacity = second_.level = second_.per_second = static_cast<double>(per_second);
  day_.capacity = day_.level = static_cast<double>(per_day);
  day_.per_second = day_.capacity / seconds_per_day;
}

bool byte_budget::take(uint64_t bytes, time_point now) {
  const auto passed = std::chrono::duration<double>(now - filled_).count();
  filled_ = now;
  second_.fill(passed);
  day_.fill(passed);
  const auto wanted = static_cast<double>(bytes);
  if (!second_.has(wanted) || !day_.has(wanted))
    return false;
  second_.level -= wanted;
  day_.level -= wanted;
  return true;
}

void byte_budget::give_back(uint64_t bytes) {
  for (auto* const each : {&second_, &day_})
    each->level = std::min(each->capacity, each->level + static_cast<double>(bytes));
}

void byte_budget::bucket::fill(double seconds) {
  level = std::min(capacity, level + seconds * per_second);
}

} // namespace hicache
