#include "base/check.hpp"
#include "base/try.hpp"
#include "hicache/rank_reducer.hpp"
#include "transport/rank_process.hpp"

#include <mpi.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// MPI_Test calls per outstanding reduction in one progress(). A reduction over many ranks runs in
/// rounds, MPI starts the next round inside MPI_Test, and Open MPI needs several calls per round.
/// With one call per pause, a rank would take as many pauses and delay all others.
constexpr auto tests_per_call = 16;

const char* thread_level_name(int level) noexcept {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "an unknown thread level";
  }
}

/// Checks the thread level of MPI, which runs.
result<void> check_thread_level() {
  auto provided = 0;
  MPI_Query_thread(&provided);
  if (provided >= MPI_THREAD_MULTIPLE)
    return {};
  return fail(ec::unsupported, std::string{"MPI provides "} + thread_level_name(provided)
                                 + " but MPI_THREAD_MULTIPLE is needed; initialise MPI with "
                                   "MPI_Init_thread(MPI_THREAD_MULTIPLE) or use an MPI built for "
                                   "it");
}

std::string mpi_message(const char* call, int code) {
  auto text = std::array<char, MPI_MAX_ERROR_STRING>{};
  auto length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS)
    length = 0;
  return std::string{call} + " failed: " + std::string(text.data(), static_cast<size_t>(length));
}

bool mpi_is_running() {
  auto initialised = 0;
  auto finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

/// A sequence of reductions on its own communicator.
struct channel_state {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  /// MPI accesses these until the request completes; do not move or resize them before.
  std::unique_ptr<std::vector<int64_t>> offered;
  std::unique_ptr<std::vector<int64_t>> minima;
  /// Set while a reduction is outstanding.
  rank_reducer::callback done;
  /// The first failure; the communicator is unusable after it.
  std::string failure;
};

class mpi_reducer final : public rank_reducer {
public:
  mpi_reducer(uint32_t rank, uint32_t size) : rank_(rank), size_(size) {}

  ~mpi_reducer() override {
    const auto running = mpi_is_running();
    for (auto& channel : channels_) {
      if (channel.request != MPI_REQUEST_NULL || !channel.failure.empty())
        abandon(channel);
      else if (running && channel.communicator != MPI_COMM_NULL)
        MPI_Comm_free(&channel.communicator);
      if (channel.done)
        std::exchange(channel.done, nullptr)(fail(ec::stopping));
    }
  }

  /// Duplicates `communicator` once per channel, and exchanges the ranks' process identities.
  result<void> open(MPI_Comm communicator) {
    for (auto& channel : channels_) {
      if (auto code = MPI_Comm_dup(communicator, &channel.communicator); code != MPI_SUCCESS)
        return fail(ec::io_failure, mpi_message("MPI_Comm_dup", code));
      MPI_Comm_set_errhandler(channel.communicator, MPI_ERRORS_RETURN);
    }
    const auto mine = rank_process::self();
    processes_.resize(size_);
    const auto code = MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, processes_.data(), sizeof(mine),
                                    MPI_BYTE, channels_.front().communicator);
    if (code != MPI_SUCCESS)
      return fail(ec::io_failure, mpi_message("MPI_Allgather", code));
    return {};
  }

  uint32_t rank() const noexcept override { return rank_; }

  uint32_t size() const noexcept override { return size_; }

  void reduce_min(reduction_channel which, std::vector<int64_t> values, callback done) override {
    auto& channel = channels_.at(static_cast<size_t>(which));
    HICACHE_CHECK(done && !channel.done);
    channel.done = std::move(done);
    if (!channel.failure.empty())
      return;
    channel.minima = std::make_unique<std::vector<int64_t>>(values.size());
    channel.offered = std::make_unique<std::vector<int64_t>>(std::move(values));
    const auto code = MPI_Iallreduce(channel.offered->data(), channel.minima->data(),
                                     static_cast<int>(channel.offered->size()), MPI_INT64_T,
                                     MPI_MIN, channel.communicator, &channel.request);
    if (code != MPI_SUCCESS)
      channel.failure = mpi_message("MPI_Iallreduce", code);
  }

  bool progress() override {
    for (auto test = 0; test < tests_per_call; ++test) {
      auto outstanding = false;
      auto ended = false;
      for (auto& channel : channels_) {
        if (!channel.done)
          continue;
        ended |= advance(channel);
        outstanding |= static_cast<bool>(channel.done);
      }
      if (!outstanding || ended)
        return outstanding;
    }
    return true;
  }

  void on_notify(notify_callback) override {}

  std::string missing(reduction_channel) override { return describe_lost(processes_, rank_); }

private:
  /// Calls the callback if the outstanding reduction has finished.
  /// @returns whether it has
  static bool advance(channel_state& channel) {
    auto finished = 0;
    if (channel.failure.empty()) {
      const auto code = MPI_Test(&channel.request, &finished, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS)
        channel.failure = mpi_message("MPI_Test", code);
    }
    // The callback may begin the next reduction, so mark the channel idle first.
    if (!channel.failure.empty()) {
      std::exchange(channel.done, nullptr)(fail(ec::rank_unresponsive, channel.failure));
    } else if (finished != 0) {
      auto minima = std::move(*channel.minima);
      std::exchange(channel.done, nullptr)(std::move(minima));
    } else {
      return false;
    }
    return true;
  }

  /// Leaks the buffers that MPI may still access.
  static void abandon(channel_state& channel) {
    static_cast<void>(channel.offered.release());
    static_cast<void>(channel.minima.release());
  }

  uint32_t rank_;
  uint32_t size_;
  std::array<channel_state, reduction_channel_count> channels_;
  std::vector<rank_process> processes_;
};

} // namespace

// -- mpi_session --------------------------------------------------------------

result<mpi_session> mpi_session::start(int* argc, char*** argv) {
  if (mpi_is_running()) {
    HICACHE_TRY(check_thread_level());
    return mpi_session{false};
  }
  auto finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised != 0)
    return fail(ec::unsupported, "MPI was finalised already and cannot be initialised twice");
  auto provided = 0;
  if (auto code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided); code != MPI_SUCCESS)
    return fail(ec::io_failure, mpi_message("MPI_Init_thread", code));
  auto session = mpi_session{true}; // Finalises MPI if it is of no use.
  HICACHE_TRY(check_thread_level());
  return session;
}

mpi_session::mpi_session(bool owner) : owner_(owner) {
  auto rank = 0;
  auto size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  rank_ = static_cast<uint32_t>(rank);
  size_ = static_cast<uint32_t>(size);
}

mpi_session::mpi_session(mpi_session&& other) noexcept
  : owner_(std::exchange(other.owner_, false)), rank_(other.rank_), size_(other.size_) {}

mpi_session& mpi_session::operator=(mpi_session&& other) noexcept {
  if (this != &other) {
    finalise();
    owner_ = std::exchange(other.owner_, false);
    rank_ = other.rank_;
    size_ = other.size_;
  }
  return *this;
}

mpi_session::~mpi_session() {
  finalise();
}

void mpi_session::finalise() noexcept {
  if (owner_ && mpi_is_running())
    MPI_Finalize();
  owner_ = false;
}

// -- make_mpi_reducer -------------------------------------------------------

result<std::unique_ptr<rank_reducer>> make_mpi_reducer(int handle) {
  if (!mpi_is_running())
    return fail(ec::unsupported, "MPI is not initialised; MPI_THREAD_MULTIPLE is needed");
  HICACHE_TRY(check_thread_level());
  const auto communicator = MPI_Comm_f2c(handle);
  auto rank = 0;
  auto size = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  auto made
    = std::make_unique<mpi_reducer>(static_cast<uint32_t>(rank), static_cast<uint32_t>(size));
  HICACHE_TRY(made->open(communicator));
  return made;
}

} // namespace hicache
