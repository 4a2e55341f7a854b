#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <vector>

namespace llama {

/// The engine's own communication between ranks: partial sums, and decisions of rank 0. One thread
/// at a time. Every function is collective and waits for the other ranks; a rank that dies ends the
/// instance (MPI_ERRORS_ARE_FATAL).
class peers {
public:
  /// @param communicator Is duplicated, so that these messages are separate from hicache's.
  /// MPI_COMM_NULL: there is a single rank, and MPI need not be initialised.
  explicit peers(MPI_Comm communicator);

  peers(const peers&) = delete;

  peers& operator=(const peers&) = delete;

  ~peers();

  int rank() const noexcept { return rank_; }

  int size() const noexcept { return size_; }

  /// Replaces the values with their sums over all ranks.
  void sum(std::span<float> values) const;

  /// Replaces the bytes with those of rank 0, of any length. Waits without keeping a core busy.
  void broadcast(std::vector<uint8_t>& bytes) const;

private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

} // namespace llama
