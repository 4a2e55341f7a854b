#include "examples/llama/peers.hpp"

#include <algorithm>
#include <climits>

namespace llama {

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
  if (size_ > 1)
    MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0, communicator_);
}

} // namespace llama
