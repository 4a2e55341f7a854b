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
  bytes_l1_to_l2 += other.bytes_l1_to_l2;
  bytes_l2_to_l1 += other.bytes_l2_to_l1;
  bytes_l2_to_l3 += other.bytes_l2_to_l3;
  bytes_l3_to_l2 += other.bytes_l3_to_l2;
  evicted_l1 += other.evicted_l1;
  evicted_l2 += other.evicted_l2;
  evicted_l3 += other.evicted_l3;
  steps += other.steps;
  reductions += other.reductions;
  divergences += other.divergences;
  storage_failures += other.storage_failures;
  dropped_backups += other.dropped_backups;
  backup_retries += other.backup_retries;
  errors += other.errors;
  free_l1 += other.free_l1;
  free_l2 += other.free_l2;
  quarantined_l2 += other.quarantined_l2;
  declined_pages += other.declined_pages;
  token_compute_ns += other.token_compute_ns;
  load_ns += other.load_ns;
  return *this;
}

} // namespace hicache
