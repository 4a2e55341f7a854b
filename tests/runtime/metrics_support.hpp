#pragma once

#include <gtest/gtest.h>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace hicache::test {

using samples = std::map<std::string, double>;

/// Reads Prometheus' text format: value by name and labels. Names and types come once, before their
/// samples; no sample comes twice.
inline samples parse(const std::string& text) {
  auto values = samples{};
  auto families = std::set<std::string>{};
  auto in = std::istringstream{text};
  for (auto line = std::string{}; std::getline(in, line);) {
    const auto space = line.rfind(' ');
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(families.insert(line.substr(7, space - 7)).second) << line;
    } else if (!line.starts_with("# HELP ")) {
      EXPECT_TRUE(values.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << line;
    }
  }
  return values;
}

inline samples parse(const std::vector<prometheus::MetricFamily>& families) {
  return parse(prometheus::TextSerializer{}.Serialize(families));
}

} // namespace hicache::test
