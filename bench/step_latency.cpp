#include "actors/rank_reduction.hpp"
#include "actors/tree.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "bench/step_rows.hpp"
#include "cache/step/step_vector.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/system_config.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <mpi.h>

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

namespace hicache::bench {

namespace {

/// Each round has a block of every kind, so that slow phases of the machine affect all alike.
constexpr auto rounds = 31;
constexpr auto block = 100;

constexpr uint32_t page_size = 16;

/// Answers immediately.
using bare_actor = caf::typed_actor<caf::replies_to<atom::get>::with<atom::ok>>;

bare_actor::behavior_type bare() {
  return {[](atom::get) { return atom::ok_v; }};
}

/// Starts copies that never finish, so that every step has something in flight.
controller_actor::behavior_type slow_controller() {
  return {[](atom::copy, const copy_batch&) {}, [](atom::counters) { return rank_counters{}; }};
}

/// Sends requests to `whom` until `times` holds one block of latencies in microseconds, then quits.
void ask_again(caf::event_based_actor* self, const bare_actor& whom, std::vector<double>* times) {
  if (times->size() == block)
    return self->quit();
  self->request(whom, caf::infinite, atom::get_v)
    .then(
      [self, whom, times, begin = bench_clock::now()](atom::ok) {
        times->push_back(microseconds_since(begin));
        ask_again(self, whom, times);
      },
      [](const caf::error&) { HICACHE_CHECK(false); });
}

std::unique_ptr<rank_reducer> agree_by_mpi() {
  auto ranks = make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD));
  HICACHE_CHECK(ranks);
  return std::move(*ranks);
}

/// The same ranks connected by sockets, as without mpirun.
std::unique_ptr<rank_reducer> agree_without_mpi() {
  auto rank = 0;
  auto size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto first = static_cast<int>(::getpid());
  MPI_Bcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD);
  auto options = socket_reducer_options{};
  options.rank = static_cast<uint32_t>(rank);
  options.size = static_cast<uint32_t>(size);
  const auto name = "step-bench-" + std::to_string(first);
  options.host = "unix:" + (std::filesystem::temp_directory_path() / name).string();
  options.timeout = limits::step_timeout;
  auto ranks = make_socket_reducer(options);
  HICACHE_CHECK(ranks);
  return std::move(*ranks);
}

/// One rank: a tree with a write in flight and its rank_reduction, spawned as in rank_runtime, and
/// bare actors as baselines.
class world {
public:
  world() : system_(settings_), self_(system_) {
    MPI_Comm_dup(MPI_COMM_WORLD, &bare_communicator_);
    rank_reduction_ = system_.spawn(rank_reduction, agree_by_mpi());
    controller_ = system_.spawn(slow_controller);
    auto options = tree_options{};
    options.page_size = page_size;
    options.l1_pages = options.l2_pages = 8;
    tree_ = system_.spawn(tree, options, tree_helpers{controller_, rank_reduction_, {}, {}, {}},
                          &clock_, caf::timespan{limits::step_timeout});
    scheduled_ = system_.spawn(bare);
    detached_ = system_.spawn<caf::detached>(bare);
    begin_write();
  }

  ~world() {
    for (const auto& actor :
         {caf::actor_cast<caf::actor>(tree_), caf::actor_cast<caf::actor>(rank_reduction_),
          caf::actor_cast<caf::actor>(controller_), caf::actor_cast<caf::actor>(scheduled_),
          caf::actor_cast<caf::actor>(detached_)}) {
      self_->send_exit(actor, caf::exit_reason::user_shutdown);
      self_->wait_for(actor);
    }
    MPI_Comm_free(&bare_communicator_);
  }

  double steps() {
    return median_of_block([this] {
      self_->request(tree_, caf::infinite, atom::step_v, caf::timespan{0})
        .receive([](const step_result& facts) { HICACHE_CHECK(facts.reduced && facts.in_flight); },
                 [](const caf::error&) { HICACHE_CHECK(false); });
    });
  }

  double bare_reductions() {
    const auto offered = encode_step({});
    auto minima = offered;
    return median_of_block([&] {
      auto request = MPI_REQUEST_NULL;
      auto finished = 0;
      MPI_Iallreduce(offered.data(), minima.data(), static_cast<int>(offered.size()), MPI_INT64_T,
                     MPI_MIN, bare_communicator_, &request);
      while (finished == 0)
        MPI_Test(&request, &finished, MPI_STATUS_IGNORE);
    });
  }

  /// Reductions on a reducer of their own.
  double reductions(bool by_mpi) {
    auto& ranks = by_mpi ? *by_mpi_ : *without_mpi_;
    const auto offered = encode_step({});
    return median_of_block([&] {
      auto is_done = false;
      ranks.reduce_min(reduction_channel::step, offered, [&](const auto& minima) {
        HICACHE_CHECK(minima);
        is_done = true;
      });
      while (ranks.progress())
        std::this_thread::yield();
      HICACHE_CHECK(is_done);
    });
  }

  /// A thread sends requests to a scheduled actor, as an engine to the tree.
  double bare_requests() {
    return median_of_block([this] {
      self_->request(scheduled_, caf::infinite, atom::get_v)
        .receive([](atom::ok) {}, [](const caf::error&) { HICACHE_CHECK(false); });
    });
  }

  /// A scheduled actor sends requests to a detached one, as the tree to the rank_reduction.
  double bare_detached_requests() {
    auto times = std::vector<double>{};
    times.reserve(block);
    MPI_Barrier(MPI_COMM_WORLD);
    self_->wait_for(
      system_.spawn([&](caf::event_based_actor* asker) { ask_again(asker, detached_, &times); }));
    return median(std::move(times));
  }

private:
  void begin_write() {
    const auto tokens = std::make_shared<const std::vector<token_id>>(page_size, 1);
    auto operations = tree_operations{
      {match_request{.request = 1, .tokens = tokens}, allocate_request{1, page_size},
       insert_request{.request = 1, .tokens = tokens}, release_request{1}}};
    self_->request(tree_, caf::infinite, atom::apply_v, std::move(operations))
      .receive(
        [](const tree_answers& answers) {
          for (const auto& answer : answers.list)
            HICACHE_CHECK(answer);
        },
        [](const caf::error&) { HICACHE_CHECK(false); });
  }

  template <class Body>
  static double median_of_block(Body body) {
    auto times = std::vector<double>{};
    MPI_Barrier(MPI_COMM_WORLD);
    for (auto i = 0; i < block; ++i) {
      const auto begin = bench_clock::now();
      body();
      times.push_back(microseconds_since(begin));
    }
    return median(std::move(times));
  }

  system_config settings_;
  monotonic_clock clock_;
  caf::actor_system system_;
  caf::scoped_actor self_;
  MPI_Comm bare_communicator_ = MPI_COMM_NULL;
  const std::unique_ptr<rank_reducer> by_mpi_ = agree_by_mpi();
  const std::unique_ptr<rank_reducer> without_mpi_ = agree_without_mpi();
  rank_reduction_core_actor rank_reduction_;
  controller_actor controller_;
  tree_core_actor tree_;
  bare_actor scheduled_;
  bare_actor detached_;
};

} // namespace

std::vector<row> measure_latency() {
  auto here = world{};
  auto size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  // Means over the ranks of the block medians.
  auto steps = std::vector<double>{};
  auto parts = std::vector<double>{};
  auto ratios = std::vector<double>{};
  auto each = std::array<std::vector<double>, 3>{};
  auto by_mpi = std::vector<double>{};
  auto without_mpi = std::vector<double>{};
  auto own_ratios = std::vector<double>{};
  for (auto i = 0; i < rounds; ++i) {
    auto mine
      = std::array{here.bare_reductions(), here.bare_requests(),  here.bare_detached_requests(),
                   here.steps(),           here.reductions(true), here.reductions(false)};
    MPI_Allreduce(MPI_IN_PLACE, mine.data(), mine.size(), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (auto& x : mine)
      x /= size;
    for (size_t k = 0; k < each.size(); ++k)
      each[k].push_back(mine[k]);
    steps.push_back(mine[3]);
    parts.push_back(mine[0] + mine[1] + mine[2]);
    ratios.push_back(steps.back() / parts.back());
    by_mpi.push_back(mine[4]);
    without_mpi.push_back(mine[5]);
    own_ratios.push_back(mine[5] / mine[4]);
  }
  const auto ranks = std::to_string(size) + " ranks";
  const auto name = "step, " + ranks + ", something in flight";
  auto target = std::optional<bound>{};
  if (size == 2)
    target = bound{bound::side::ratio_at_most, 1.5};
  return {
    {name + ": median", median(steps), "us", median(parts), median(ratios), target},
    {name + ": of the baseline, MPI_Iallreduce", median(each[0]), "us"},
    {name + ": of the baseline, request of a thread", median(each[1]), "us"},
    {name + ": of the baseline, request to a detached actor", median(each[2]), "us"},
    {"reduction of a step without MPI, " + ranks + ", over that with MPI",
     median(without_mpi),
     "us",
     median(by_mpi),
     median(own_ratios),
     {}},
  };
}

} // namespace hicache::bench
