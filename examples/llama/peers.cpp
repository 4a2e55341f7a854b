#include "examples/llama/peers.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>

namespace llama {

namespace {

/// A rank that has waited for long notices a decision after little more than its lateness, and
/// costs a percent of a core.
constexpr auto shortest_pause = std::chrono::microseconds{10};
constexpr auto longest_pause = std::chrono::microseconds{2000};

} // namespace

peers::peers(MPI_Comm communicator) {
  if (communicator == MPI_COMM_NULL)
    return;
  MPI_Comm_dup(communicator, &communicator_);
  MPI_Comm_rank(communicator_, &rank_);
  MPI_Comm_size(communicator_, &size_);
}

peers::~peers() {
  if (communicator_ != MPI_COMM_NULL)
    MPI_Comm_free(&communicator_);
}

void peers::sum(std::span<float> values) const {
  if (size_ == 1)
    return;
  // MPI counts in int.
  while (!values.empty()) {
    const auto count = std::min(values.size(), size_t{INT_MAX});
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  communicator_);
    values = values.subspan(count);
  }
}

void peers::broadcast(std::vector<uint8_t>& bytes) const {
  if (size_ == 1)
    return;
  auto count = static_cast<int>(bytes.size());
  auto request = MPI_REQUEST_NULL;
  MPI_Ibcast(&count, 1, MPI_INT, 0, communicator_, &request);
  // MPI waits busily, and the other ranks wait for rank 0 while there is nothing to do.
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    auto is_done = 0;
    MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    if (is_done != 0)
      break;
    const auto waited
      = duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    std::this_thread::sleep_for(std::clamp(waited / 8, shortest_pause, longest_pause));
  }
  bytes.resize(static_cast<size_t>(count));
  MPI_Bcast(bytes.data(), count, MPI_BYTE, 0, communicator_);
}

} // namespace llama
