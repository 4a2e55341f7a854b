#pragma once

#include "hicache/clock.hpp"
#include "launch/router/completion_body.hpp"
#include "launch/router/instance_table.hpp"
#include "launch/router/upstream_call.hpp"

#include <httplib.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

/// Answers completions by instances of the table. One that does not answer is replaced by another,
/// as long as nothing of its answer went to the client. Any thread; the table must outlive it.
class completion_proxy {
public:
  struct options {
    duration connect_time{};
    /// Of a request, with all its attempts.
    duration request_time{};
    /// Further instances that a request may go to.
    uint32_t retries = 0;
  };

  completion_proxy(instance_table& table, const options& chosen)
    : table_(table), options_(chosen) {}

  /// POST /v1/completions.
  /// @param client Socket of the client.
  void complete(const httplib::Request& request, std::string body, int client,
                httplib::Response& answer);

  uint64_t retries() const noexcept { return retries_.load(std::memory_order_relaxed); }

private:
  struct attempt;

  /// Asks one instance for an answer, or the first events of one.
  attempt ask(std::shared_ptr<instance_lease> lease, const completion_body& body,
              const std::vector<std::string>& headers, int client, time_point until) const;

  void deliver(attempt made, httplib::Response& answer) const;

  instance_table& table_;
  const options options_;
  std::atomic<uint64_t> retries_ = 0;
};

} // namespace hicache
