#include "tests/gpu/fake_cuda/fake_cuda.hpp"

#include "cache/copy_strips.hpp"
#include "gpu/copy_kernels.hpp"
#include "gpu/copy_piece.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace {

/// How much of each stream's work is known to be done, or comes before.
using vector_clock = std::map<uint64_t, uint64_t>;

void merge(vector_clock& into, const vector_clock& other) {
  for (const auto& [stream, count] : other)
    into[stream] = std::max(into[stream], count);
}

bool covers(const vector_clock& known, const vector_clock& other) {
  return std::ranges::all_of(other, [&](const auto& each) {
    const auto i = known.find(each.first);
    return i != known.end() && i->second >= each.second;
  });
}

struct access {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool writes = false;
  uint64_t stream = 0;
  uint64_t number = 0;
  std::string what;
};

struct allocation {
  uint64_t bytes = 0;
  int device = 0;
};

} // namespace

struct CUstream_st {
  uint64_t id = 0;
  int device = 0;
  vector_clock clock{};
};

struct CUevent_st {
  int device = 0;
  vector_clock clock{};
};

namespace {

struct world {
  std::mutex mutex;
  int devices = 1;
  uint64_t last_stream = 0;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::map<uintptr_t, allocation> memory;
  std::map<uintptr_t, uint64_t> registered;
  /// What threads have waited for.
  vector_clock host;
  std::vector<access> accesses;
  std::vector<std::string> races;
  std::vector<std::string> misplaced;
  uint32_t copies_to_fail = 0;
  bool is_lost = false;
  /// The streams of calls that name none; nothing waits for them but who asks.
  std::map<int, CUstream_st> defaults;

  /// Memory goes: its addresses may be another's next.
  void forget(uintptr_t begin, uint64_t bytes) {
    std::erase_if(accesses,
                  [&](const access& x) { return x.begin >= begin && x.begin < begin + bytes; });
  }
};

world& here() {
  static auto one = world{};
  return one;
}

thread_local auto current_device = 0;
thread_local auto last_error = cudaSuccess;

cudaError_t say(cudaError_t status) {
  if (here().is_lost)
    status = cudaErrorIllegalAddress;
  if (status != cudaSuccess && status != cudaErrorNotReady)
    last_error = status;
  return status;
}

CUstream_st& stream_or_default(cudaStream_t stream) {
  if (stream != nullptr)
    return *stream;
  auto& own = here().defaults[current_device];
  own.device = current_device;
  if (own.id == 0)
    own.id = ++here().last_stream;
  return own;
}

/// One piece of work. Under the lock.
class work {
public:
  work(CUstream_st& stream, std::string what) : stream_(stream), what_(std::move(what)) {
    merge(stream_.clock, here().host);
    number_ = ++stream_.clock[stream_.id];
    if (stream_.device != current_device)
      here().misplaced.push_back(what_ + " on a stream of device " + std::to_string(stream_.device)
                                 + " while device " + std::to_string(current_device)
                                 + " is the current one");
  }

  void touch(const void* address, uint64_t bytes, bool writes) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    const auto mine = access{begin, begin + bytes, writes, stream_.id, number_, what_};
    for (const auto& other : here().accesses) {
      const auto contradicts
        = (mine.writes || other.writes) && mine.begin < other.end && other.begin < mine.end;
      if (!contradicts || (other.stream == mine.stream && other.number == mine.number))
        continue;
      const auto known = stream_.clock.find(other.stream);
      if (known == stream_.clock.end() || known->second < other.number)
        here().races.push_back(what_ + " does not wait for " + other.what);
    }
    here().accesses.push_back(mine);
  }

  void copy(void* to, const void* from, uint64_t bytes) {
    touch(from, bytes, false);
    touch(to, bytes, true);
    std::memcpy(to, from, bytes);
  }

private:
  CUstream_st& stream_;
  std::string what_;
  uint64_t number_ = 0;
};

bool should_fail() {
  if (here().copies_to_fail == 0)
    return false;
  --here().copies_to_fail;
  return true;
}

} // namespace

// -- for tests ----------------------------------------------------------------

namespace fake_cuda {

void reset(int devices) {
  auto& it = here();
  const auto lock = std::scoped_lock{it.mutex};
  it.devices = devices;
  it.host.clear();
  it.accesses.clear();
  it.races.clear();
  it.misplaced.clear();
  it.defaults.clear();
  it.copies_to_fail = 0;
  it.is_lost = false;
}

void launch(cudaStream_t stream, std::span<const range> reads, std::span<const range> writes) {
  const auto lock = std::scoped_lock{here().mutex};
  auto kernel = work{stream_or_default(stream), "a kernel of the engine"};
  for (const auto& each : reads)
    kernel.touch(each.address, each.bytes, false);
  for (const auto& each : writes)
    kernel.touch(each.address, each.bytes, true);
}

std::vector<std::string> races() {
  const auto lock = std::scoped_lock{here().mutex};
  return here().races;
}

std::vector<std::string> misplaced() {
  const auto lock = std::scoped_lock{here().mutex};
  return here().misplaced;
}

int device_of(const void* address) {
  const auto lock = std::scoped_lock{here().mutex};
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto next = here().memory.upper_bound(at);
  if (next == here().memory.begin())
    return -1;
  const auto& [begin, found] = *std::prev(next);
  return at < begin + found.bytes ? found.device : -1;
}

std::vector<int> stream_devices() {
  const auto lock = std::scoped_lock{here().mutex};
  auto list = std::vector<int>{};
  for (const auto* stream : here().streams)
    list.push_back(stream->device);
  return list;
}

void fail_copies(uint32_t count) {
  const auto lock = std::scoped_lock{here().mutex};
  here().copies_to_fail = count;
}

void lose_device() {
  const auto lock = std::scoped_lock{here().mutex};
  here().is_lost = true;
}

} // namespace fake_cuda

// -- the runtime: devices, memory ---------------------------------------------

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = here().devices;
  return say(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= here().devices)
    return say(cudaErrorInvalidDevice);
  current_device = device;
  return say(cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return say(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "fake GPU");
  return say(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 16;
  return say(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int, int) {
  std::strcpy(id, "none");
  return say(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return say(cudaSuccess);
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorIllegalAddress ? "an illegal memory access" : "a failure";
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  *mode = cudaStreamCaptureModeGlobal;
  return say(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = size_t{1} << 30;
  return say(cudaSuccess);
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  const auto lock = std::scoped_lock{here().mutex};
  *address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  here().memory[reinterpret_cast<uintptr_t>(*address)] = {bytes, current_device};
  return say(cudaSuccess);
}

cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) {
  return cudaMalloc(address, bytes);
}

cudaError_t cudaFree(void* address) {
  const auto lock = std::scoped_lock{here().mutex};
  const auto at = reinterpret_cast<uintptr_t>(address);
  here().forget(at, here().memory[at].bytes);
  here().memory.erase(at);
  std::free(address);
  return say(cudaSuccess);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return say(cudaSuccess);
}

cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return say(cudaSuccess);
}

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  const auto lock = std::scoped_lock{here().mutex};
  here().registered[reinterpret_cast<uintptr_t>(address)] = bytes;
  return say(cudaSuccess);
}

cudaError_t cudaHostUnregister(void* address) {
  const auto lock = std::scoped_lock{here().mutex};
  const auto at = reinterpret_cast<uintptr_t>(address);
  here().forget(at, here().registered[at]);
  here().registered.erase(at);
  return say(cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void** seen, void* address, unsigned) {
  *seen = address;
  return say(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const auto device = fake_cuda::device_of(address);
  attributes->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
  attributes->device = std::max(device, 0);
  return say(cudaSuccess);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return say(cudaErrorNotSupported);
}

cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return say(cudaErrorNotSupported);
}

cudaError_t cudaIpcCloseMemHandle(void*) {
  return say(cudaSuccess);
}

// -- the runtime: streams and events ------------------------------------------

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = *highest = 0;
  return say(cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const auto lock = std::scoped_lock{here().mutex};
  *stream = new CUstream_st{++here().last_stream, current_device};
  here().streams.insert(*stream);
  return say(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto lock = std::scoped_lock{here().mutex};
  here().streams.erase(stream);
  delete stream;
  return say(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto lock = std::scoped_lock{here().mutex};
  merge(here().host, stream_or_default(stream).clock);
  return say(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const auto lock = std::scoped_lock{here().mutex};
  *event = new CUevent_st{current_device};
  here().events.insert(*event);
  return say(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const auto lock = std::scoped_lock{here().mutex};
  here().events.erase(event);
  delete event;
  return say(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto lock = std::scoped_lock{here().mutex};
  auto& on = stream_or_default(stream);
  if (!here().events.contains(event) || event->device != on.device)
    return say(cudaErrorInvalidResourceHandle);
  merge(on.clock, here().host);
  event->clock = on.clock;
  return say(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto lock = std::scoped_lock{here().mutex};
  merge(here().host, event->clock);
  return say(cudaSuccess);
}

/// Passed is only what a thread has waited for: the slowest GPU that there can be.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto lock = std::scoped_lock{here().mutex};
  return say(covers(here().host, event->clock) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto lock = std::scoped_lock{here().mutex};
  if (!here().events.contains(event))
    return say(cudaErrorInvalidResourceHandle);
  merge(stream_or_default(stream).clock, event->clock);
  return say(cudaSuccess);
}

// -- the runtime: copies ------------------------------------------------------

cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  const auto lock = std::scoped_lock{here().mutex};
  work{stream_or_default(nullptr), "cudaMemset"}.touch(address, bytes, true);
  std::memset(address, value, bytes);
  return say(cudaSuccess);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  const auto lock = std::scoped_lock{here().mutex};
  auto& stream = stream_or_default(nullptr);
  work{stream, "cudaMemcpy"}.copy(to, from, bytes);
  merge(here().host, stream.clock);
  return say(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const auto lock = std::scoped_lock{here().mutex};
  if (should_fail())
    return say(cudaErrorInvalidValue);
  work{stream_or_default(stream), "a copy"}.copy(to, from, bytes);
  return say(cudaSuccess);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride,
                              size_t bytes, size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  const auto lock = std::scoped_lock{here().mutex};
  if (should_fail())
    return say(cudaErrorInvalidValue);
  auto copy = work{stream_or_default(stream), "a copy of rows"};
  for (auto row = size_t{0}; row < rows; ++row)
    copy.copy(static_cast<std::byte*>(to) + row * to_stride,
              static_cast<const std::byte*>(from) + row * from_stride, bytes);
  return say(cudaSuccess);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                 size_t count, cudaMemcpyAttributes*, size_t*, size_t,
                                 cudaStream_t stream) {
#elif CUDART_VERSION >= 12080
cudaError_t cudaMemcpyBatchAsync(void** to, void** from, size_t* bytes, size_t count,
                                 cudaMemcpyAttributes*, size_t*, size_t, size_t*,
                                 cudaStream_t stream) {
#endif
#if CUDART_VERSION >= 12080
  const auto lock = std::scoped_lock{here().mutex};
  if (should_fail())
    return say(cudaErrorInvalidValue);
  auto batch = work{stream_or_default(stream), "a batch of copies"};
  for (auto i = size_t{0}; i < count; ++i)
    batch.copy(to[i], from[i], bytes[i]);
  return say(cudaSuccess);
}
#endif

} // extern "C"

// -- the kernels --------------------------------------------------------------

namespace hicache {

uint64_t bundle_count(const copy_strip& strip, uint64_t pages) {
  return piece_count(strip, pages);
}

result<void> prepare_copy_kernel(kernel_method) {
  return {};
}

result<void> launch_copy_kernel(kernel_method, const kernel_copy& copy, uint32_t,
                                cudaStream_t stream) {
  const auto lock = std::scoped_lock{here().mutex};
  if (should_fail() || here().is_lost)
    return fail(ec::copy_failed, "the kernel was not launched");
  auto kernel = work{stream_or_default(stream), "a copy kernel"};
  for (auto i = uint64_t{0}; i < copy.strip_count; ++i)
    for (auto piece = uint64_t{0}; piece < piece_count(copy.strips[i], copy.pages); ++piece) {
      const auto found = find_piece(copy.strips[i], copy.l1_pages, copy.l2_pages, piece);
      auto* const device = reinterpret_cast<void*>(found.device_address);
      auto* const host = reinterpret_cast<void*>(found.host_address);
      if (copy.direction == copy_direction::store)
        kernel.copy(host, device, found.bytes);
      else
        kernel.copy(device, host, found.bytes);
    }
  return {};
}

} // namespace hicache
