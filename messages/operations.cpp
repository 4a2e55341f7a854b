#include "messages/commands.hpp"

#include <array>

namespace hicache {

const char* to_string(miss_reason why) noexcept {
  constexpr auto names = std::array{
    "unavailable", "late",    "failed",     "copy_failed", "corrupt",           "gone",
    "stopped",     "no_room", "over_quota", "too_short",   "faster_to_compute", "none"};
  return names[static_cast<size_t>(why)];
}

rank_counters& rank_counters::operator+=(const rank_counters& other) noexcept {
  using c = rank_counters;
  constexpr auto all
    = std::array{&c::bytes_l1_to_l2, &c::bytes_l2_to_l1, &c::bytes_l2_to_l3,   &c::bytes_l3_to_l2,
                 &c::evicted_l1,     &c::evicted_l2,     &c::evicted_l3,       &c::steps,
                 &c::reductions,     &c::divergences,    &c::storage_failures, &c::dropped_backups,
                 &c::backup_retries, &c::errors,         &c::free_l1,          &c::free_l2,
                 &c::quarantined_l2, &c::declined_pages, &c::token_compute_ns, &c::load_ns};
  static_assert(sizeof(rank_counters) == all.size() * sizeof(uint64_t));
  for (const auto counter : all)
    this->*counter += other.*counter;
  return *this;
}

} // namespace hicache
