#include "launch/transfer_probe.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <cstring>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Page size of the machine, or a divisor of it.
constexpr auto page_bytes = uint64_t{4096};

class host_probe final : public transfer_probe {
public:
  explicit host_probe(probe_target target) : target_(std::move(target)) {
    HICACHE_CHECK(target_.threads > 0);
  }

  result<double> copy_whole(copy_direction direction) override {
    auto* from = direction == copy_direction::store ? target_.l1 : target_.l2;
    auto* to = direction == copy_direction::store ? target_.l2 : target_.l1;
    return share_out(target_.bytes, target_.threads, [&](uint64_t begin, uint64_t end) {
      std::memcpy(to + begin, from + begin, end - begin);
    });
  }

  result<double> copy_by_page(copy_direction /*direction*/) override { return 0.0; }

  result<void> compute(const layer_progress& progress,
                       std::chrono::nanoseconds per_layer) override {
    for (auto layer = uint32_t{0}; layer < progress.layers(); ++layer) {
      if (!progress.wait(layer))
        return fail(ec::copy_failed, "the load under the computation failed");
      const auto end = std::chrono::steady_clock::now() + per_layer;
      while (std::chrono::steady_clock::now() < end)
        continue;
    }
    return {};
  }

private:
  probe_target target_;
};

} // namespace

result<double> share_out(uint64_t bytes, uint32_t threads,
                         const std::function<void(uint64_t, uint64_t)>& work) {
  const auto part = (bytes / threads + page_bytes - 1) / page_bytes * page_bytes;
  const auto do_part = [&](uint32_t i) {
    work(std::min(i * part, bytes), i + 1 == threads ? bytes : std::min((i + 1) * part, bytes));
  };
  auto ready = std::latch{threads};
  auto helpers = std::vector<std::jthread>{};
  try {
    for (auto i = uint32_t{1}; i < threads; ++i)
      helpers.emplace_back([&, i] {
        ready.arrive_and_wait();
        do_part(i);
      });
  } catch (const std::system_error& problem) {
    // Releases the threads already started.
    ready.count_down(threads - static_cast<std::ptrdiff_t>(helpers.size()));
    return fail(ec::io_failure, std::string{"cannot start a thread: "} + problem.what());
  }
  ready.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  do_part(0);
  helpers.clear();
  return seconds_since(begin);
}

std::unique_ptr<transfer_probe> make_host_probe(probe_target target) {
  return std::make_unique<host_probe>(std::move(target));
}

} // namespace hicache
