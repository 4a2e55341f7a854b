#pragma once

#include "hicache/clock.hpp"
#include "launch/router/event_subscription.hpp"
#include "launch/router/instance_table.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

namespace hicache {

/// Follows one instance for the table: probes whether it answers, and reads its events. Runs
/// threads of its own. The table must outlive it.
class instance_watch {
public:
  struct options {
    duration period{};
    duration connect_time{};
  };

  /// @returns invalid_argument with a sentence about an endpoint of its events
  static result<std::unique_ptr<instance_watch>> start(const instance_options& wanted,
                                                       instance_slot slot, instance_table& table,
                                                       const options& chosen);

  instance_watch(std::string address, instance_slot slot, instance_table& table,
                 const options& chosen);

private:
  void probe(const std::stop_token& stop);

  const std::string address_;
  const instance_slot slot_;
  instance_table& table_;
  const options options_;
  std::unique_ptr<event_subscription> events_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread prober_;
};

} // namespace hicache
