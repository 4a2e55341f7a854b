#include "base/check.hpp"
#include "bench/step_rows.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/runtime.hpp"

#include <caf/scoped_actor.hpp>
#include <mpi.h>

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

namespace hicache::bench {

namespace {

constexpr auto counted_steps = 200;

/// Delay of the late rank, and number of rounds.
constexpr auto lateness = std::chrono::seconds{2};
constexpr auto late_rounds = 3;

constexpr uint32_t page_size = 16;

int64_t largest_of_ranks(int64_t mine) {
  MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return mine;
}

/// CPU seconds used so far by all threads of this process.
double cpu_seconds() {
  auto used = rusage{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& x) {
    return static_cast<double>(x.tv_sec) + 1e-6 * static_cast<double>(x.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// A rank as programs start it, with a minimal engine.
class engine {
public:
  engine() : runtime_(start()), self_(runtime_->system()) {}

  /// Inserts a new page, which starts its write to L2.
  void begin_write() {
    const auto tokens = std::make_shared<const std::vector<token_id>>(page_size, ++last_token_);
    const auto id = request_id{last_token_};
    auto operations = tree_operations{
      {match_request{.request = id, .tokens = tokens}, allocate_request{id, page_size},
       insert_request{.request = id, .tokens = tokens}, release_request{id}}};
    self_->request(runtime_->tree(), caf::infinite, atom::apply_v, std::move(operations))
      .receive(
        [](const tree_answers& answers) {
          for (const auto& answer : answers.list)
            HICACHE_CHECK(answer);
        },
        [](const caf::error&) { HICACHE_CHECK(false); });
  }

  step_result step() {
    auto facts = step_result{};
    self_->request(runtime_->tree(), caf::infinite, atom::step_v, caf::timespan{0})
      .receive([&](step_result& x) { facts = std::move(x); },
               [](const caf::error&) { HICACHE_CHECK(false); });
    return facts;
  }

  void reduce_on(reduction_channel channel) {
    self_
      ->request(runtime_->rank_reduction(), caf::infinite, atom::reduce_v,
                reduction{channel, {0, 0}})
      .receive([](const reduced&) {}, [](const caf::error&) { HICACHE_CHECK(false); });
  }

  int64_t reductions() const { return static_cast<int64_t>(runtime_->counters().reductions); }

  void settle() {
    while (step().in_flight)
      continue;
  }

private:
  static std::unique_ptr<rank_runtime> start() {
    auto config = rank_config{};
    config.device = device_kind::host;
    config.page_size = page_size;
    config.l1_pages = 256;
    auto ranks = make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD));
    HICACHE_CHECK(ranks && config.finish((*ranks)->size()));
    auto runtime = rank_runtime::start(config, std::move(*ranks));
    HICACHE_CHECK(runtime);
    return std::move(*runtime);
  }

  std::unique_ptr<rank_runtime> runtime_;
  caf::scoped_actor self_;
  token_id last_token_ = 0;
};

/// Maximum number of reductions in one step.
int64_t count_reductions(engine& here, bool with_writes) {
  auto most = int64_t{0};
  for (auto counted = 0; counted < counted_steps;) {
    if (with_writes)
      here.begin_write();
    auto in_flight = true;
    while (in_flight) {
      const auto before = here.reductions();
      const auto facts = here.step();
      most = std::max(most, here.reductions() - before);
      HICACHE_CHECK(facts.reduced == with_writes);
      in_flight = facts.in_flight;
      ++counted;
    }
  }
  return most;
}

/// CPU usage of rank 0, as a share of a core, while it waits in `meet` for a late rank.
template <class Meet>
double share_of_core(int rank, Meet meet) {
  auto shares = std::vector<double>{};
  for (auto i = 0; i < late_rounds; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0)
      std::this_thread::sleep_for(lateness);
    const auto begin = bench_clock::now();
    const auto used = cpu_seconds();
    meet();
    shares.push_back((cpu_seconds() - used) / (1e-6 * microseconds_since(begin)));
  }
  return median(std::move(shares));
}

} // namespace

std::vector<row> measure_ranks() {
  auto rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto here = engine{};
  const auto busy = largest_of_ranks(count_reductions(here, true));
  const auto idle = largest_of_ranks(count_reductions(here, false));
  const auto step = share_of_core(rank, [&] {
    here.begin_write();
    here.settle();
  });
  const auto admin = share_of_core(rank, [&] { here.reduce_on(reduction_channel::admin); });
  const auto nothing = share_of_core(rank, [&] {
    if (rank == 0)
      std::this_thread::sleep_for(lateness);
  });
  const auto at_most = [](double limit) { return bound{bound::side::value_at_most, limit}; };
  return {
    {"reductions of a step, something in flight, at most",
     static_cast<double>(busy),
     "",
     {},
     {},
     at_most(1)},
    {"reductions of a step, nothing in flight, at most",
     static_cast<double>(idle),
     "",
     {},
     {},
     at_most(0)},
    {"share of a core of a rank that waits 2 s in a step for another",
     step,
     "core",
     {},
     {},
     at_most(0.05)},
    {"the same, waiting for a change of the backend", admin, "core", nothing, {}, at_most(0.02)},
  };
}

} // namespace hicache::bench
