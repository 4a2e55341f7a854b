#pragma once

#include <prometheus/client_metric.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <concepts>
#include <string>
#include <vector>

namespace hicache {

using metric_labels = std::vector<prometheus::ClientMetric::Label>;

/// Collects the metrics of a scrape. Metrics of one name, with different labels, form a family that
/// takes its help from the first of them.
class metric_families {
public:
  /// @param common Labels put in front of every metric's own.
  explicit metric_families(metric_labels common = {}) : common_(std::move(common)) {}

  /// Adds a counter if its name ends in _total, else a gauge.
  void add(const std::string& name, const std::string& help, double value,
           const metric_labels& labels = {});

  /// The same for whole numbers.
  void add(const std::string& name, const std::string& help, std::integral auto value,
           const metric_labels& labels = {}) {
    add(name, help, static_cast<double>(value), labels);
  }

  void histogram(const std::string& name, const std::string& help,
                 const prometheus::Histogram& values);

  std::vector<prometheus::MetricFamily> take() { return std::move(families_); }

private:
  void insert(const std::string& name, const std::string& help, prometheus::MetricType type,
              prometheus::ClientMetric metric, const metric_labels& labels);

  const metric_labels common_;
  std::vector<prometheus::MetricFamily> families_;
};

} // namespace hicache
