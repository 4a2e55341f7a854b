#include "launch/replay_metrics.hpp"

#include "runtime/metric_families.hpp"

#include <string>

namespace hicache {

namespace {

/// In seconds: from a request served from L1 to one that waits for a long prefill.
const auto ttft_bounds = prometheus::Histogram::BucketBoundaries{
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};

/// In seconds: from a reduction between synchronised ranks to the longest wait of a step.
const auto step_bounds = prometheus::Histogram::BucketBoundaries{
  0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001,
  0.0025,  0.005,    0.01,    0.025,  0.05,    0.1,    1};

void add_instance(metric_families& families, const replay_counts& counts) {
  families.add("hicache_requests_total", "Requests served.", counts.requests);
  families.add("hicache_prompt_tokens_total", "Tokens of all prompts.", counts.prompt_tokens);
  families.add("hicache_computed_tokens_total", "Tokens of these that no tier had.",
               counts.computed_tokens);
  const auto cached = [&](const char* tier, uint64_t tokens) {
    families.add("hicache_cached_tokens_total", "Tokens of these that a tier had.", tokens,
                 {{"tier", tier}});
  };
  cached("l1", counts.cached_l1);
  cached("l2", counts.cached_l2);
  cached("l3", counts.cached_l3);
  for (const auto& [tier, tokens] : counts.cached_l3_tiers)
    families.add("hicache_cached_l3_tokens_total",
                 "Tokens that L3 had, by the store of its tier that had them.", tokens,
                 {{"backend", tier}});
  for (auto why = size_t{0}; why < static_cast<size_t>(miss_reason::none); ++why)
    families.add("hicache_unserved_tokens_total",
                 "Tokens that were computed although a tier had them.", counts.given_up[why],
                 {{"reason", to_string(static_cast<miss_reason>(why))}});
}

} // namespace

replay_metrics::replay_metrics(uint32_t rank)
  : rank_(rank), ttft_(ttft_bounds), steps_(step_bounds) {}

void replay_metrics::show(const replay_totals& so_far) {
  for (; ttft_seen_ < so_far.ttft_ms.size(); ++ttft_seen_)
    ttft_.Observe(so_far.ttft_ms[ttft_seen_] / 1e3);
  for (; steps_seen_ < so_far.step_us.size(); ++steps_seen_)
    steps_.Observe(so_far.step_us[steps_seen_] / 1e6);
  const auto guard = std::lock_guard{mutex_};
  counts_ = so_far;
}

std::vector<prometheus::MetricFamily> replay_metrics::Collect() const {
  const auto counts = [this] {
    const auto guard = std::lock_guard{mutex_};
    return counts_;
  }();
  auto families = metric_families{{{"rank", std::to_string(rank_)}}};
  families.add("hicache_checked_pages_total", "Cached pages compared before use.",
               counts.pages_checked);
  families.add("hicache_mismatched_pages_total", "Pages of these that were wrong.",
               counts.mismatches);
  families.add("hicache_engine_errors_total",
               "Requests that could not be served, and loads and turns that failed.",
               counts.engine_errors);
  families.histogram("hicache_step_seconds",
                     "Steps that needed a reduction, waiting for news included.", steps_);
  if (rank_ == 0) {
    families.histogram("hicache_ttft_seconds",
                       "From a request's arrival to the end of its computation.", ttft_);
    add_instance(families, counts);
  }
  return families.take();
}

} // namespace hicache
