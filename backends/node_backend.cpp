#include "backends/node_backend.hpp"

#include "backends/node_client.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "rpc/endpoint.hpp"
#include "rpc/network.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

namespace hicache {

namespace {

/// Bytes of pages per request: with slot headers a bit more than a quarter of what a client may
/// write at a time in a node of 64 MiB, so that three threads of a rank fit. Larger requests gain
/// nothing, since copying dominates the round trip.
constexpr auto request_bytes = uint64_t{2} << 20;

/// Timeout of the first connection.
constexpr auto connect_time = std::chrono::seconds{5};

/// The pages of one request, from `first` on, bounded by node_batch_pages and request_bytes.
template <class Page>
std::span<const Page> next_request(std::span<const Page> pages, size_t first) {
  auto count = size_t{0};
  auto bytes = uint64_t{0};
  while (first + count < pages.size() && count < limits::node_batch_pages) {
    bytes += total_bytes(pages[first + count].parts);
    if (count > 0 && bytes > request_bytes)
      break;
    ++count;
  }
  return pages.subspan(first, count);
}

/// Whether the node's address is a port, not a path.
bool is_port(const std::string& node) {
  return node.find('/') == std::string::npos && rpc::parse_endpoint(node);
}

class node_backend final : public blocking_store {
public:
  node_backend(caf::actor_system& system, node_backend_options options, const clock_source& clock)
    : clock_(clock), network_(system, is_port(options.node) ? options.tls : tls_files{}),
      node_({&system, network_.node_connector(),
             is_port(options.node) ? options.node : "unix:" + options.node,
             client_info{0, options.fingerprint}, duration{}, &clock}) {}

  /// @pre not in use yet
  result<void> connect() {
    const auto node = HICACHE_TRY(node_.status({0, 1}, clock_.now() + connect_time));
    evicted_before_ = node.evicted;
    return {};
  }

  std::string name() const override { return "node"; }

  store_capabilities capabilities() const override {
    return {.survives_restarts = true,
            .is_shared = true,
            .tells_occupancy = true,
            .preferred_object_bytes = request_bytes};
  }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    return in_batches(keys, deadline, false, [&](auto part) {
      return node_.prefetch(part, false, deadline).value_or(std::vector<bool>(part.size()));
    });
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override {
    return in_requests(
      pages, deadline, ec::not_found, [&](auto part) { return node_.get(part, deadline); },
      &backend_counters::count_get);
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return in_requests(
      pages, deadline, ec::store_full, [&](auto part) { return node_.put(part, deadline); },
      &backend_counters::count_set);
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    return in_batches(keys, deadline, result<void>{fail(ec::deadline_exceeded)},
                      [&](auto part) { return node_.remove(part, deadline); });
  }

  backend_health health() override {
    auto health = backend_health{};
    const auto node = node_.status({0, 1}, clock_.now() + limits::scrape_time);
    const auto lock = std::scoped_lock{mutex_};
    if (node) {
      // A restarted node counts from 0.
      if (node->evicted < evicted_before_)
        evicted_before_ = 0;
      counters_.evicted = node->evicted - evicted_before_;
      health.objects = node->pages;
      health.bytes = node->used_bytes;
      health.capacity_bytes = node->capacity_bytes;
    } else {
      health.ok = false;
      health.detail = to_string(node.error());
    }
    health.counters = counters_;
    return health;
  }

private:
  /// Asks the node about keys, in requests of the permitted size.
  /// @param late The answer for keys that the deadline leaves unasked.
  template <class Answer, class Request>
  std::vector<Answer> in_batches(std::span<const page_key> keys, time_point deadline,
                                 const Answer& late, Request request) {
    auto answers = std::vector<Answer>{};
    while (answers.size() < keys.size() && clock_.now() < deadline) {
      const auto rest = keys.subspan(answers.size());
      const auto some = request(rest.first(std::min(rest.size(), limits::node_batch_pages)));
      answers.insert(answers.end(), some.begin(), some.end());
    }
    answers.resize(keys.size(), late);
    return answers;
  }

  /// Executes a batch on the node, in requests of the permitted size.
  /// @param none Error for a client that has as much in flight as it may.
  template <class Page, class Request>
  std::vector<result<void>>
  in_requests(std::span<const Page> pages, time_point deadline, ec none, Request request,
              void (backend_counters::*count)(const result<void>&) noexcept) {
    auto answers = std::vector<result<void>>{};
    while (answers.size() < pages.size()) {
      const auto part = next_request(pages, answers.size());
      auto done = clock_.now() < deadline
                    ? request(part)
                    : std::vector<result<void>>(part.size(), fail(ec::deadline_exceeded));
      for (auto& answer : done) {
        if (!answer && answer.error().code == ec::limit_reached)
          answer = fail(none, answer.error().detail);
        answers.push_back(std::move(answer));
      }
    }
    const auto lock = std::scoped_lock{mutex_};
    for (const auto& answer : answers)
      (counters_.*count)(answer);
    return answers;
  }

  const clock_source& clock_;
  rpc_network network_;
  node_client node_;
  std::mutex mutex_; // Guards what follows.
  backend_counters counters_;
  /// Evictions of the node before this connection.
  uint64_t evicted_before_ = 0;
};

} // namespace

result<std::unique_ptr<blocking_store>> make_node_backend(caf::actor_system& system,
                                                          node_backend_options options,
                                                          const clock_source& clock) {
  auto backend = std::make_unique<node_backend>(system, std::move(options), clock);
  HICACHE_TRY(backend->connect());
  return backend;
}

} // namespace hicache
