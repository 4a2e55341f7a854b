// A libcuda.so.1 with one device, whose memory is host memory at other addresses. What is queued is
// done at once.

#include "tests/c_abi/fake_cuda.hpp"

#include <cuda.h>

#include <atomic>
#include <cstring>

namespace hicache::test {
namespace {

std::atomic<size_t> to_host{0};
std::atomic<size_t> to_device{0};
std::atomic<size_t> waits{0};
std::atomic<size_t> streams{0};
std::atomic<size_t> events{0};
std::atomic<size_t> contexts{0};
std::atomic<ptrdiff_t> copies_left{-1};
thread_local size_t depth = 0;

/// A call outside of a context, or the copy that shall fail.
bool is_wrong(bool is_copy = false) {
  return depth == 0 || (is_copy && copies_left >= 0 && copies_left-- == 0);
}

} // namespace

fake_cuda_figures fake_cuda_state() {
  return {to_host, to_device, waits, streams, events, contexts};
}

void fail_copy_after(size_t copies) {
  copies_left = static_cast<ptrdiff_t>(copies);
}

} // namespace hicache::test

using namespace hicache::test;

extern "C" {

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "a failure of the test";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = nullptr;
  ++contexts;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) {
  --contexts;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext) {
  ++depth;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext*) {
  --depth;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(++streams);
  return is_wrong() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream) {
  --streams;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream) {
  return is_wrong() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  ++waits;
  return is_wrong() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(++events);
  return is_wrong() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent) {
  --events;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent, CUstream) {
  return is_wrong() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent) {
  return is_wrong() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  if (is_wrong(true))
    return CUDA_ERROR_UNKNOWN;
  ++to_host;
  std::memcpy(to, device_address(reinterpret_cast<void*>(from)), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  if (is_wrong(true))
    return CUDA_ERROR_UNKNOWN;
  ++to_device;
  std::memcpy(device_address(reinterpret_cast<void*>(to)), from, bytes);
  return CUDA_SUCCESS;
}

} // extern "C"
