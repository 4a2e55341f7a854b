#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// A CUDA runtime without a GPU, in place of the real one: the same functions, so that the code
/// under test is compiled as it is. Work is carried out when it is queued, which is one of the
/// orders that a GPU may choose. Whether it is the only one is what is checked: each access to
/// memory must come after each earlier one that it contradicts, by streams, events and waiting
/// threads (vector clocks), or it is noted as a race.
///
/// Threads are assumed to tell each other what they wait for: no race is noted where one may be,
/// never one where none is. One world for the process; any thread.
namespace fake_cuda {

/// Forgets everything, current devices of threads aside.
/// @pre no memory, stream or event is alive
void reset(int devices);

struct range {
  const void* address = nullptr;
  uint64_t bytes = 0;
};

/// Queues a kernel of the engine's.
void launch(cudaStream_t stream, std::span<const range> reads, std::span<const range> writes);

/// A sentence for each pair of accesses that nothing orders.
std::vector<std::string> races();

/// What was done on another device than it should have been.
std::vector<std::string> misplaced();

/// The device that memory was allocated on; -1 for memory that was not.
int device_of(const void* address);

/// Devices on which streams are alive.
std::vector<int> stream_devices();

/// From now on the next `count` copies cannot be queued; or, for good, nothing works any more.
void fail_copies(uint32_t count);
void lose_device();

} // namespace fake_cuda
