#pragma once

#include <cstddef>
#include <cstdint>

/// What tests ask of the driver in fake_cuda.cpp.
namespace hicache::test {

/// Where the CPU must not look: the address that the device has for this memory.
inline void* device_address(void* memory) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) ^ (uintptr_t{1} << 62));
}

/// What the driver did since the last reset.
struct fake_cuda_figures {
  size_t copies_to_host = 0;
  size_t copies_to_device = 0;
  /// Waits of streams for events.
  size_t waits = 0;
  /// What was made and not destroyed.
  size_t streams = 0;
  size_t events = 0;
  size_t contexts = 0;
};

fake_cuda_figures fake_cuda_state();

/// Lets the copy after so many others fail.
void fail_copy_after(size_t copies);

} // namespace hicache::test
