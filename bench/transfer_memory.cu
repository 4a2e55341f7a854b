#include "base/try.hpp"
#include "bench/transfer_memory.hpp"
#include "launch/transfer_probe.hpp"

#include <cuda_runtime.h>

#include <chrono>

namespace hicache {

namespace {

/// Converts the status of a runtime call into a result.
result<void> check(const char* call, cudaError_t status) {
  if (status != cudaSuccess)
    return fail(ec::io_failure, std::string{call} + ": " + cudaGetErrorString(status));
  return {};
}

} // namespace

result<double> register_new_memory(uint64_t bytes) {
  // The first call of a process creates the context, which is not part of pinning.
  HICACHE_TRY(check("cudaSetDevice", cudaSetDevice(0)));
  const auto begin = std::chrono::steady_clock::now();
  auto memory = HICACHE_TRY(map_new_memory(bytes));
  HICACHE_TRY(
    check("cudaHostRegister", cudaHostRegister(memory.data(), bytes, cudaHostRegisterPortable)));
  const auto seconds = seconds_since(begin);
  HICACHE_TRY(check("cudaHostUnregister", cudaHostUnregister(memory.data())));
  return seconds;
}

std::string cuda_driver_version() {
  auto version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess)
    return "unknown";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

} // namespace hicache
