#include "runtime/rank_metrics.hpp"

#include "runtime/metric_families.hpp"
#include "runtime/tier_metrics.hpp"

#include <string>

namespace hicache {

namespace {

constexpr auto evicted_name = "hicache_evicted_pages_total";
constexpr auto evicted_help = "Pages dropped to make room; of L3: objects.";

void add_counters(metric_families& families, const rank_counters& c) {
  const auto add
    = [&](const char* name, const char* help, auto value) { families.add(name, help, value); };
  add("hicache_steps_total", "Steps of the engine.", c.steps);
  add("hicache_reductions_total", "Reductions for steps and for hit lengths.", c.reductions);
  add("hicache_divergences_total", "Times the ranks' trees differed.", c.divergences);
  add("hicache_errors_total", "Copies and reductions that failed.", c.errors);
  const auto move = [&](const char* from, const char* to, uint64_t bytes) {
    families.add("hicache_moved_bytes_total", "Bytes moved between tiers.", bytes,
                 {{"from", from}, {"to", to}});
  };
  move("l1", "l2", c.bytes_l1_to_l2);
  move("l2", "l1", c.bytes_l2_to_l1);
  move("l2", "l3", c.bytes_l2_to_l3);
  move("l3", "l2", c.bytes_l3_to_l2);
  families.add(evicted_name, evicted_help, c.evicted_l1, {{"tier", "l1"}});
  families.add(evicted_name, evicted_help, c.evicted_l2, {{"tier", "l2"}});
  add("hicache_storage_failures_total", "Reads and writes of L3 that failed.", c.storage_failures);
  add("hicache_backup_retries_total", "Writes to L3 that were tried again.", c.backup_retries);
  add("hicache_dropped_backup_pages_total",
      "Pages whose write to L3 was dropped because too many waited or L3 went on failing.",
      c.dropped_backups);
  add("hicache_backup_locked_pages",
      "Pages of L2 that are locked because an expired call of L3 may still read them.",
      c.quarantined_l2);
  add("hicache_declined_pages_total",
      "Pages of L3 that prefetches left there because computing them was faster.",
      c.declined_pages);
  add("hicache_token_compute_seconds",
      "Estimated time in which the engine computes a token; 0: not measured.",
      static_cast<double>(c.token_compute_ns) / 1e9);
  add("hicache_load_estimate_seconds",
      "Estimated time to read as many pages of L3 as a prefetch has in flight, from the "
      "slowest tier that was measured; 0: none was.",
      static_cast<double>(c.load_ns) / 1e9);
}

void add_backend(metric_families& families, const std::string& backend,
                 const backend_counters& counted) {
  const auto labels = metric_labels{{"backend", backend}};
  const auto add = [&](const char* name, const char* help, uint64_t value) {
    families.add(name, help, value, labels);
  };
  add("hicache_storage_hits_total", "Objects that L3 answered.", counted.hits);
  add("hicache_storage_misses_total", "Objects that were not in L3 when read.", counted.misses);
  add("hicache_storage_corrupt_total", "Objects of L3 that did not verify.", counted.corrupt);
  add("hicache_storage_errors_total",
      "Objects whose read or write failed for another reason, passed deadlines included.",
      counted.errors);
}

void add_status(metric_families& families, const std::string& backend,
                const storage_status& status) {
  const auto add = [&](const char* name, const storage_status::direction& x) {
    const auto labels = metric_labels{{"backend", backend}, {"direction", name}};
    families.add("hicache_storage_breaker_open",
                 "1 if calls do not go to L3 because it failed or did not answer; 0.5 if it is "
                 "tried again; 0 if all is well.",
                 x.state == "open"     ? 1
                 : x.state == "closed" ? 0
                                       : 0.5,
                 labels);
    families.add("hicache_storage_breaker_since_seconds",
                 "When that began, in seconds since 1970; 0: with the rank.", x.since_s, labels);
    for (const auto* cause : {"late", "failing", "stuck"})
      families.add("hicache_storage_breaker_cause", "1 for the cause, 0 for the others.",
                   x.cause == cause ? 1 : 0,
                   {{"backend", backend}, {"direction", name}, {"cause", cause}});
    families.add("hicache_storage_breaker_openings_total", "Times that calls stopped going to L3.",
                 x.openings, labels);
  };
  add("reads", status.reads);
  add("writes", status.writes);
  families.add("hicache_storage_stuck_calls",
               "Calls of L3 that have passed their deadline and not returned.", status.stuck_calls,
               {{"backend", backend}});
  families.add("hicache_storage_quarantined_pages", "Pages of L2 that these calls may still touch.",
               status.quarantined_pages, {{"backend", backend}});
}

void add_store(metric_families& families, const store_figures& store) {
  families.add(evicted_name, evicted_help, store.evicted, {{"tier", "l3"}});
  families.add("hicache_exported_bytes", "Memory that the rank exports to the cluster store.",
               store.exported_bytes);
  families.add("hicache_sent_bytes_total",
               "Bytes of exported memory that were sent to readers on other machines.",
               store.sent_bytes);
  families.add("hicache_repaired_pages_total",
               "Pages of exported memory whose lost copies were made anew.", store.repaired_pages);
  families.add("hicache_repair_failures_total",
               "Times that too few members took copies of such a page; it is tried again.",
               store.repair_failures);
  families.add("hicache_unrepaired_pages", "Pages of exported memory that lack copies.",
               store.unrepaired_pages);
  for (const auto& [backend, counted] : store.counters)
    add_backend(families, backend, counted);
  if (!store.attached)
    return;
  const auto labels = metric_labels{{"backend", store.attached->backend}};
  families.add("hicache_storage_up", "1 if the attached L3 can be used, 0 if not.",
               store.attached->ok ? 1 : 0, labels);
  add_status(families, store.attached->backend, store.attached->status);
  add_tiers(families, store.attached->tiers);
  if (!store.attached->held)
    return;
  families.add("hicache_storage_objects", "Objects in L3 that the rank accounts for.",
               store.attached->held->objects, labels);
  families.add("hicache_storage_bytes", "Bytes that these take.", store.attached->held->bytes,
               labels);
  families.add("hicache_storage_capacity_bytes", "Bound on these; 0 if there is none.",
               store.attached->held->capacity_bytes, labels);
}

} // namespace

std::vector<prometheus::MetricFamily> to_metrics(const rank_figures& figures) {
  auto families = metric_families{{{"rank", std::to_string(figures.rank)}}};
  families.add("hicache_up", "1 if all actors of the rank answered the scrape, 0 if not.",
               figures.counters ? 1 : 0);
  const auto room = [&](const char* tier, const tier_capacity& capacity) {
    families.add("hicache_capacity_pages", "Pages that the tier has room for.", capacity.pages,
                 {{"tier", tier}});
    families.add("hicache_capacity_bytes", "Bytes of these pages.", capacity.bytes,
                 {{"tier", tier}});
  };
  room("l1", figures.l1);
  room("l2", figures.l2);
  if (figures.counters) {
    add_counters(families, *figures.counters);
    const auto used = [&](const char* tier, uint64_t pages, uint64_t free) {
      families.add("hicache_used_pages", "Pages of the tier that hold something or are reserved.",
                   pages - free, {{"tier", tier}});
    };
    used("l1", figures.l1.pages, figures.counters->free_l1);
    used("l2", figures.l2.pages, figures.counters->free_l2);
  }
  if (figures.store)
    add_store(families, *figures.store);
  return families.take();
}

} // namespace hicache
