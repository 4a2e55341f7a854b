#include "examples/llama/peers.hpp"

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>

namespace llama {

namespace {

constexpr auto longest_pause = std::chrono::microseconds{500};

} // namespace

peers::peers(MPI_Comm communicator) {
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

void peers::broadcast(std::vector<std::byte>& bytes) const {
  if (size_ == 1)
    return;
  auto count = static_cast<int>(bytes.size());
  auto request = MPI_REQUEST_NULL;
  MPI_Ibcast(&count, 1, MPI_INT, 0, communicator_, &request);
  // MPI waits busily, and the other ranks wait for rank 0 while there is nothing to do.
  for (auto pause = std::chrono::microseconds{10};; pause = std::min(2 * pause, longest_pause)) {
    auto is_done = 0;
    MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    if (is_done != 0)
      break;
    std::this_thread::sleep_for(pause);
  }
  bytes.resize(static_cast<size_t>(count));
  MPI_Bcast(bytes.data(), count, MPI_BYTE, 0, communicator_);
}

} // namespace llama
