#include "tests/faults/faulty_backend.hpp"

#include "base/check.hpp"
#include "base/unique_fd.hpp"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <utility>

namespace hicache::test {

namespace {

bool happens(std::mt19937_64& random, double share) {
  return std::bernoulli_distribution{share}(random);
}

uint64_t below(std::mt19937_64& random, uint64_t end) {
  return std::uniform_int_distribution<uint64_t>{0, end - 1}(random);
}

/// Blocks in a read, as a slow disk makes its reader block: the fault that is injected, which
/// nobody waits for.
void read_late(uint64_t milliseconds) {
  const auto medium = unique_fd{timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)};
  auto time = itimerspec{};
  time.it_value.tv_sec = static_cast<time_t>(milliseconds / 1000);
  time.it_value.tv_nsec = static_cast<long>(milliseconds % 1000 * 1'000'000);
  auto expirations = uint64_t{0};
  HICACHE_CHECK(medium && timerfd_settime(medium.get(), 0, &time, nullptr) == 0
                && read(medium.get(), &expirations, sizeof(expirations)) == sizeof(expirations));
}

} // namespace

faulty_backend::faulty_backend(std::unique_ptr<blocking_store> inner, page_folder folder,
                               fault_plan plan)
  : inner_(std::move(inner)), folder_(std::move(folder)), plan_(std::move(plan)) {
  HICACHE_CHECK(inner_ != nullptr && inner_->name() == "file");
}

faulty_backend::~faulty_backend() {
  const auto told = nlohmann::json{{"seed", plan_.seed},
                                   {"delays", counters_.delays.load()},
                                   {"failures", counters_.failures.load()},
                                   {"cuts", counters_.cuts.load()},
                                   {"flips", counters_.flips.load()},
                                   {"losses", counters_.losses.load()},
                                   {"lies", counters_.lies.load()}};
  std::fprintf(stderr, "faults of rank %u: %s\n", plan_.rank, told.dump().c_str());
}

std::string faulty_backend::name() const {
  return inner_->name();
}

std::vector<bool> faulty_backend::exists(std::span<const page_key> keys, time_point deadline) {
  auto answers = inner_->exists(keys, deadline);
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    auto random = draw(keys[i], call::exists);
    static_cast<void>(disturb(random, call::exists));
    if (!happens(random, plan_.lie))
      continue;
    answers[i] = !answers[i];
    ++counters_.lies;
  }
  return answers;
}

std::vector<result<void>> faulty_backend::get(std::span<const page_read> pages,
                                              time_point deadline) {
  auto answers = std::vector<result<void>>{};
  for (const auto& page : pages) {
    auto random = draw(page.key, call::get);
    auto outcome = disturb(random, call::get);
    if (happens(random, plan_.lose)) {
      static_cast<void>(inner_->remove({&page.key, 1}, deadline));
      ++counters_.losses;
    }
    answers.push_back(outcome ? inner_->get({&page, 1}, deadline).front() : outcome);
  }
  return answers;
}

std::vector<result<void>> faulty_backend::set(std::span<const page_write> pages,
                                              time_point deadline) {
  auto answers = std::vector<result<void>>{};
  for (const auto& page : pages) {
    auto random = draw(page.key, call::set);
    auto outcome = disturb(random, call::set);
    answers.push_back(outcome ? inner_->set({&page, 1}, deadline).front() : outcome);
    if (answers.back())
      damage(random, page.key);
  }
  return answers;
}

std::vector<result<void>> faulty_backend::remove(std::span<const page_key> keys,
                                                 time_point deadline) {
  auto answers = std::vector<result<void>>{};
  for (const auto& key : keys) {
    auto random = draw(key, call::remove);
    auto outcome = disturb(random, call::remove);
    answers.push_back(outcome ? inner_->remove({&key, 1}, deadline).front() : outcome);
  }
  return answers;
}

backend_health faulty_backend::health() {
  return inner_->health();
}

std::mt19937_64 faulty_backend::draw(const page_key& key, call which) {
  auto attempt = uint32_t{0};
  {
    const auto lock = std::scoped_lock{mutex_};
    attempt = attempts_[{key, which}]++;
  }
  auto values = std::vector<uint32_t>(key.bytes.begin(), key.bytes.end());
  values.insert(values.end(),
                {static_cast<uint32_t>(plan_.seed), static_cast<uint32_t>(plan_.seed >> 32),
                 plan_.rank, static_cast<uint32_t>(which), attempt});
  auto mixed = std::seed_seq(values.begin(), values.end());
  return std::mt19937_64{mixed};
}

result<void> faulty_backend::disturb(std::mt19937_64& random, call which) {
  if (plan_.stick > 0 && happens(random, plan_.stick))
    while (true)
      ::pause(); // As the call of a server that is gone; signals go to another thread.
  if (happens(random, plan_.delay)) {
    ++counters_.delays;
    read_late(1 + below(random, plan_.delay_ms_max));
  }
  if (which == call::exists || !happens(random, plan_.fail))
    return {};
  ++counters_.failures;
  constexpr auto codes
    = std::array{ec::io_failure, ec::deadline_exceeded, ec::peer_unreachable, ec::store_full};
  // A store that is full can be read.
  return fail(codes[below(random, which == call::set ? codes.size() : codes.size() - 1)],
              "as planned");
}

void faulty_backend::damage(std::mt19937_64& random, const page_key& key) {
  const auto cuts = happens(random, plan_.cut);
  const auto flips = happens(random, plan_.flip);
  if (!cuts && !flips)
    return;
  const auto file = unique_fd{::open(folder_.page_path(key).c_str(), O_RDWR | O_CLOEXEC)};
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || info.st_size == 0)
    return; // Evicted or cut to nothing meanwhile.
  const auto place = static_cast<off_t>(below(random, static_cast<uint64_t>(info.st_size)));
  if (cuts) {
    HICACHE_CHECK(::ftruncate(file.get(), place) == 0);
    ++counters_.cuts;
    return;
  }
  auto byte = uint8_t{0};
  if (::pread(file.get(), &byte, 1, place) != 1)
    return; // Another rank has cut it.
  byte ^= static_cast<uint8_t>(1U << below(random, 8));
  HICACHE_CHECK(::pwrite(file.get(), &byte, 1, place) == 1);
  ++counters_.flips;
}

} // namespace hicache::test
