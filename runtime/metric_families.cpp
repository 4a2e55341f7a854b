#include "runtime/metric_families.hpp"

#include "base/check.hpp"

#include <prometheus/check_names.h>

#include <algorithm>
#include <utility>

namespace hicache {

void metric_families::add(const std::string& name, const std::string& help, double value,
                          const metric_labels& labels) {
  const auto is_counter = name.ends_with("_total");
  auto metric = prometheus::ClientMetric{};
  (is_counter ? metric.counter.value : metric.gauge.value) = value;
  insert(name, help, is_counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge,
         std::move(metric), labels);
}

void metric_families::histogram(const std::string& name, const std::string& help,
                                const prometheus::Histogram& values) {
  insert(name, help, prometheus::MetricType::Histogram, values.Collect(), {});
}

void metric_families::insert(const std::string& name, const std::string& help,
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
