#include "runtime/node_metrics.hpp"

#include "backends/ask.hpp"
#include "base/limits.hpp"
#include "runtime/metric_families.hpp"
#include "runtime/tier_metrics.hpp"

#include <future>

namespace hicache {

namespace {

/// The stores that a store is made of; none if it does not answer in time.
std::vector<tier_health> tiers_of(storage_backend& store) {
  const auto told = std::make_shared<std::promise<backend_health>>();
  store.health([told](backend_health x) { told->set_value(std::move(x)); });
  auto health = told->get_future();
  return health.wait_for(limits::scrape_time) == std::future_status::ready
           ? health.get().tiers
           : std::vector<tier_health>{};
}

} // namespace

std::vector<prometheus::MetricFamily> to_metrics(const std::optional<node_status>& status,
                                                 const std::vector<tier_health>& tiers) {
  auto families = metric_families{};
  const auto add
    = [&](const char* name, const char* help, uint64_t value) { families.add(name, help, value); };
  add("hicache_up", "1 if the node answered the scrape, 0 if not.", status ? 1 : 0);
  if (!status)
    return families.take();
  add("hicache_node_capacity_bytes", "Memory for pages.", status->capacity_bytes);
  add("hicache_node_used_bytes", "Memory that pages take, or are being written to.",
      status->used_bytes);
  add("hicache_node_pages", "Pages that can be read.", status->pages);
  add("hicache_node_clients", "Clients that are connected.", status->client_count);
  add("hicache_node_reserved_bytes", "Memory that clients are writing to.", status->reserved_bytes);
  add("hicache_node_leased_bytes",
      "Memory that clients are reading; a page that several read counts for each.",
      status->leased_bytes);
  add("hicache_node_reservations", "Reservations of clients.", status->reservations);
  add("hicache_node_leases", "Leases of clients.", status->leases);
  add("hicache_node_expired_leases_total",
      "Leases that ended by their time, and not by their client.", status->expired_leases);
  add("hicache_node_refused_total", "Requests of clients refused because of a share or a bound.",
      status->refused);
  add("hicache_node_evicted_pages_total", "Pages evicted to make room.", status->evicted);
  add("hicache_node_kept_pages_total",
      "Pages of an earlier node that were found in the memory file and are offered again.",
      status->pages_kept);
  add("hicache_node_dropped_pages_total",
      "Pages that were found in the memory file and did not verify.", status->pages_dropped);
  add("hicache_node_unscanned_bytes",
      "What of the memory file was not looked at yet for pages of an earlier node.",
      status->unscanned_bytes);
  add("hicache_node_disk_capacity_bytes", "Bound on the disk tier's bytes; 0 without one.",
      status->disk_capacity_bytes);
  add("hicache_node_disk_bytes", "Bytes of the pages on disk, headers included.",
      status->disk_bytes);
  add("hicache_node_disk_pages", "Pages on disk.", status->disk_pages);
  add("hicache_node_disk_read_pages_total", "Pages read from disk into memory.",
      status->disk_pages_read);
  add("hicache_node_disk_written_pages_total", "Pages written to disk.",
      status->disk_pages_written);
  add("hicache_node_disk_skipped_pages_total",
      "Pages that left memory before they were written to disk.", status->disk_pages_skipped);
  add("hicache_node_disk_failed_pages_total",
      "Pages on disk that did not verify, and pages that could not be read or written.",
      status->disk_pages_failed);
  add("hicache_node_pages_wanted_total", "Pages that clients looked up.", status->pages_wanted);
  add("hicache_node_pages_found_total", "Pages of these that were exported to them.",
      status->pages_found);
  add("hicache_node_pages_written_total", "Pages that clients wrote.", status->pages_written);
  add_tiers(families, tiers);
  return families.take();
}

std::vector<prometheus::MetricFamily> node_metrics::Collect() const {
  const auto status = ask<node_status>(system_, node_, caf::timespan{limits::scrape_time},
                                       atom::status_v, status_query{0, 1});
  return to_metrics(status ? std::optional{*status} : std::nullopt,
                    below_ ? tiers_of(*below_) : std::vector<tier_health>{});
}

} // namespace hicache
