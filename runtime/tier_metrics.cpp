#include "runtime/tier_metrics.hpp"

#include <cstddef>
#include <string>

namespace hicache {

void add_tiers(metric_families& families, const std::vector<tier_health>& tiers) {
  for (auto i = size_t{0}; i < tiers.size(); ++i) {
    const auto& [name, health, written_bytes, over_budget] = tiers[i];
    const auto labels = metric_labels{{"number", std::to_string(i + 1)}, {"backend", name}};
    const auto add = [&](const char* metric, const char* help, uint64_t value) {
      families.add(metric, help, value, labels);
    };
    add("hicache_storage_tier_up",
        "1 if this tier of L3 can be used, 0 if it is left out for a while.", health.ok ? 1 : 0);
    add("hicache_storage_tier_hits_total", "Objects that were read from the tier.",
        health.counters.hits);
    add("hicache_storage_tier_misses_total",
        "Objects that the tier was asked for and did not have.", health.counters.misses);
    add("hicache_storage_tier_corrupt_total", "Objects of the tier that did not verify.",
        health.counters.corrupt);
    add("hicache_storage_tier_errors_total", "Objects whose read or write failed in the tier.",
        health.counters.errors);
    add("hicache_storage_tier_evicted_total", "Objects that the tier evicted to make room.",
        health.counters.evicted);
    add("hicache_storage_tier_written_bytes_total",
        "Bytes of the objects that were stored in the tier.", written_bytes);
    add("hicache_storage_tier_over_budget_total",
        "Objects that the tier was not given because its budget of bytes was used up.",
        over_budget);
    add("hicache_storage_tier_objects", "Objects in the tier.", health.objects);
    add("hicache_storage_tier_bytes", "Bytes that these take.", health.bytes);
    add("hicache_storage_tier_capacity_bytes", "Bound on these; 0 if there is none.",
        health.capacity_bytes);
  }
}

} // namespace hicache
