#pragma once

#include "hicache/config.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace prometheus {
class Collectable;
} // namespace prometheus

namespace hicache {

/// Adds --metrics-port and --metrics-host.
/// @param port_help What is said about the port.
/// @relates metrics_options
void add_metrics_flags(CLI::App& app, metrics_options& options, const std::string& port_help);

/// Answers `GET /metrics` in the text format of Prometheus, on threads of its own.
class metrics_server {
public:
  /// Listens, and shows nothing yet.
  /// @param where Here port 0 picks a free one.
  /// @returns invalid_argument with a sentence that names the flags
  static result<std::unique_ptr<metrics_server>> start(const metrics_options& where);

  /// Waits for scrapes that are being answered.
  virtual ~metrics_server() = default;

  /// Shows from now on what `source` collects, beside what was added before. Any thread.
  /// @param source Asked by several threads at once, and expected to answer within a few seconds.
  /// No two sources may have a metric of the same name. A prometheus::Registry is one.
  virtual void add(std::shared_ptr<const prometheus::Collectable> source) = 0;

  /// HOST:PORT it listens on.
  virtual const std::string& address() const = 0;
};

} // namespace hicache
