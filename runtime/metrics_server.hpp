#pragma once

#include "hicache/config.hpp"
#include "hicache/error.hpp"

#include <memory>
#include <string>

namespace prometheus {
class Collectable;
} // namespace prometheus

namespace hicache {

/// Serves `GET /metrics` in the text format of Prometheus, on its own threads.
class metrics_server {
public:
  /// Listens, without any source yet.
  /// @param where Port 0 picks a free one.
  /// @returns invalid_argument with a sentence that names the flags
  static result<std::unique_ptr<metrics_server>> start(const metrics_options& where);

  /// Waits for scrapes in progress.
  virtual ~metrics_server() = default;

  /// Adds the metrics of `source` to the scrapes. Any thread.
  /// @param source Called concurrently; should answer within a few seconds. No two sources may have
  /// a metric of the same name. A prometheus::Registry is one.
  virtual void add(std::shared_ptr<const prometheus::Collectable> source) = 0;

  /// The bound HOST:PORT.
  virtual const std::string& address() const = 0;
};

} // namespace hicache
