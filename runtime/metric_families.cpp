#include "runtime/metric_families.hpp"

#include "base/check.hpp"

#include <prometheus/check_names.h>

#include <algorithm>
#include <utility>

namespace hicache {

void metric_families::count(const std::string& name, const std::string& help, uint64_t value,
                            const metric_labels& labels) {
  HICACHE_CHECK(name.ends_with("_total"));
  auto metric = prometheus::ClientMetric{};
  metric.counter.value = static_cast<double>(value);
  add(name, help, prometheus::MetricType::Counter, std::move(metric), labels);
}

void metric_families::gauge(const std::string& name, const std::string& help, double value,
                            const metric_labels& labels) {
  auto metric = prometheus::ClientMetric{};
  metric.gauge.value = value;
  add(name, help, prometheus::MetricType::Gauge, std::move(metric), labels);
}

void metric_families::histogram(const std::string& name, const std::string& help,
                                const prometheus::Histogram& values) {
  add(name, help, prometheus::MetricType::Histogram, values.Collect(), {});
}

void metric_families::add(const std::string& name, const std::string& help,
                          prometheus::MetricType type, prometheus::ClientMetric metric,
                          const metric_labels& labels) {
  HICACHE_CHECK(prometheus::CheckMetricName(name));
  metric.label = common_;
  metric.label.insert(metric.label.end(), labels.begin(), labels.end());
  auto family = std::ranges::find(families_, name, &prometheus::MetricFamily::name);
  if (family == families_.end())
    family = families_.insert(family, {name, help, type, {}});
  HICACHE_CHECK(family->type == type);
  family->metric.push_back(std::move(metric));
}

} // namespace hicache
