#pragma once

#include "hicache/storage_backend.hpp"
#include "runtime/metric_families.hpp"

#include <vector>

namespace hicache {

/// Adds the metrics of the stores that a store is made of.
void add_tiers(metric_families& families, const std::vector<tier_health>& tiers);

} // namespace hicache
