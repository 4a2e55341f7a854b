#include "base/check.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "gpu/cuda_memory.hpp"
#include "gpu/host_memory.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <utility>

namespace hicache {

namespace {

using literals::operator""_MiB;

constexpr auto share_prefix = std::string_view{"cuda-ipc "};
constexpr auto handle_bytes = sizeof(cudaIpcMemHandle_t::reserved);

/// cudaMalloc carves smaller allocations out of blocks of this size; sharing one shares the block.
constexpr auto allocation_unit = 2_MiB;

enum class memory_origin : uint8_t { allocated, opened };

class cuda_memory final : public device_memory {
public:
  cuda_memory(int device, void* address, uint64_t bytes, memory_origin origin,
              std::string description)
    : device_(device), data_(static_cast<std::byte*>(address)), size_(bytes), origin_(origin),
      description_(std::move(description)) {}

  ~cuda_memory() override {
    const auto scope = cuda_device_scope{device_};
    // Fails only if the device or the process is going away, which frees the memory.
    static_cast<void>(origin_ == memory_origin::allocated ? cudaFree(data_)
                                                          : cudaIpcCloseMemHandle(data_));
  }

  std::byte* data() noexcept override { return data_; }

  uint64_t size() const noexcept override { return size_; }

  std::string description() const override { return description_; }

  result<void> write(uint64_t offset, std::span<const std::byte> bytes) override {
    HICACHE_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    return copy(data_ + offset, bytes.data(), bytes.size());
  }

  result<void> read(uint64_t offset, std::span<std::byte> bytes) const override {
    HICACHE_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    return copy(bytes.data(), data_ + offset, bytes.size());
  }

  result<std::string> share() const override {
    if (origin_ == memory_origin::opened)
      return fail(ec::unsupported,
                  "this memory belongs to another process; only its owner can share it");
    const auto scope = cuda_device_scope{device_};
    HICACHE_TRY(scope.check(ec::io_failure));
    auto share = cuda_share{{}, size_};
    HICACHE_TRY(check_cuda(ec::unsupported, "cannot share device memory: cudaIpcGetMemHandle",
                           cudaIpcGetMemHandle(&share.handle, data_)));
    return to_string(share);
  }

private:
  result<void> copy(void* to, const void* from, size_t bytes) const {
    if (bytes == 0)
      return {};
    const auto scope = cuda_device_scope{device_};
    HICACHE_TRY(scope.check(ec::io_failure));
    HICACHE_TRY(
      check_cuda(ec::io_failure, "cudaMemcpy", cudaMemcpy(to, from, bytes, cudaMemcpyDefault)));
    // cudaMemcpy from pageable memory may return before the last bytes are on the device.
    return check_cuda(ec::io_failure, "cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
  }

  int device_;
  std::byte* data_;
  uint64_t size_;
  memory_origin origin_;
  std::string description_;
};

class pinned_memory final : public mapped_memory {
public:
  /// Takes ownership of a mapping that is registered with CUDA.
  explicit pinned_memory(host_mapping mapping)
    : mapped_memory(mapping.bytes()), mapping_(std::move(mapping)) {}

  ~pinned_memory() override {
    // Unregister before the mapping goes: the device must not keep the addresses.
    static_cast<void>(cudaHostUnregister(data()));
  }

  std::string description() const override { return mapping_.description() + ", pinned"; }

  result<std::string> share() const override {
    return fail(ec::unsupported, "pinned host memory cannot be shared; only device memory can");
  }

private:
  host_mapping mapping_;
};

/// The NUMA node that the device is attached to; empty if unknown.
std::optional<int> numa_node_of_device(int device) {
  auto name = std::array<char, 32>{};
  if (!check_cuda(ec::io_failure, "cudaDeviceGetPCIBusId",
                  cudaDeviceGetPCIBusId(name.data(), name.size(), device)))
    return std::nullopt;
  // CUDA prints upper-case hexadecimal digits; sysfs uses lower case.
  auto folder = std::string{name.data()};
  std::ranges::transform(folder, folder.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'F' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  auto file = std::ifstream{"/sys/bus/pci/devices/" + folder + "/numa_node"};
  auto node = -1;
  if (!(file >> node) || node < 0)
    return std::nullopt;
  return node;
}

/// Checks that kernels access registered memory at its CPU address; copy_strip has one for both.
result<void> check_same_address(void* address) {
  auto* seen = static_cast<void*>(nullptr);
  HICACHE_TRY(check_cuda(ec::unsupported, "cudaHostGetDevicePointer",
                         cudaHostGetDevicePointer(&seen, address, 0)));
  if (seen != address)
    return fail(ec::unsupported,
                "the GPU sees pinned memory at another address than the CPU; expected a machine "
                "with unified addressing of registered memory");
  return {};
}

result<std::unique_ptr<device_memory>> pin(host_mapping&& mapping) {
  const auto bytes = mapping.bytes();
  HICACHE_TRY(check_cuda(
    ec::io_failure, "cannot pin " + format_bytes(bytes.size()) + " of memory: cudaHostRegister",
    cudaHostRegister(bytes.data(), bytes.size(),
                     cudaHostRegisterPortable | cudaHostRegisterMapped)));
  auto memory = std::make_unique<pinned_memory>(std::move(mapping));
  HICACHE_TRY(check_same_address(bytes.data()));
  return memory;
}

/// "what: description of the status".
tl::unexpected<error> cuda_failure(ec code, const std::string& what, cudaError_t status) {
  // Clear the error: the runtime would return it to the next caller, including the engine.
  static_cast<void>(cudaGetLastError());
  return fail(code, what + ": " + cudaGetErrorString(status));
}

} // namespace

result<void> check_cuda(ec code, std::string_view call, cudaError_t status) {
  if (status != cudaSuccess)
    return cuda_failure(code, std::string{call}, status);
  return {};
}

result<void> use_cuda_device(ec code, int device) {
  // While another thread captures a graph, threads in the default mode may not even query events.
  auto mode = cudaStreamCaptureModeThreadLocal;
  HICACHE_TRY(check_cuda(code, "cudaThreadExchangeStreamCaptureMode",
                         cudaThreadExchangeStreamCaptureMode(&mode)));
  return check_cuda(code, "cudaSetDevice", cudaSetDevice(device));
}

cuda_device_scope::cuda_device_scope(int device) noexcept {
  status_ = cudaGetDevice(&previous_);
  if (status_ != cudaSuccess || previous_ == device)
    return;
  status_ = cudaSetDevice(device);
  is_changed_ = true;
}

cuda_device_scope::~cuda_device_scope() {
  if (is_changed_)
    static_cast<void>(cudaSetDevice(previous_));
}

result<void> cuda_device_scope::check(ec code) const {
  return check_cuda(code, "cudaSetDevice", status_);
}

std::string to_string(const cuda_share& share) {
  constexpr auto digits = std::string_view{"0123456789abcdef"};
  auto text = std::string{share_prefix};
  for (const auto letter : share.handle.reserved) {
    const auto byte = static_cast<unsigned char>(letter);
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text + " " + std::to_string(share.bytes);
}

result<cuda_share> parse_cuda_share(std::string_view text) {
  auto share = cuda_share{};
  constexpr auto size_at = share_prefix.size() + 2 * handle_bytes + 1;
  if (text.size() > size_at) {
    for (auto i = size_t{0}; i < handle_bytes; ++i) {
      const auto* digits = text.data() + share_prefix.size() + 2 * i;
      auto byte = uint8_t{0};
      std::from_chars(digits, digits + 2, byte, 16);
      share.handle.reserved[i] = static_cast<char>(byte);
    }
    std::from_chars(text.data() + size_at, text.data() + text.size(), share.bytes);
  }
  // Rejects text that was not parsed in full: it does not round-trip.
  if (share.bytes == 0 || to_string(share) != text)
    return fail(ec::invalid_argument,
                "'" + std::string{text}
                  + "' names no memory of a CUDA device; expected 'cuda-ipc', a handle of "
                  + std::to_string(2 * handle_bytes)
                  + " lower-case hexadecimal digits and a number of bytes");
  return share;
}

result<std::unique_ptr<device_memory>> allocate_cuda_memory(int device, uint64_t bytes,
                                                            const std::string& device_name) {
  HICACHE_CHECK(bytes > 0);
  const auto scope = cuda_device_scope{device};
  HICACHE_TRY(scope.check(ec::io_failure));
  // The larger of the two: rounding up wraps to 0 for impossible sizes.
  const auto whole = std::max(bytes, (bytes + allocation_unit - 1) & ~(allocation_unit - 1));
  auto* address = static_cast<void*>(nullptr);
  if (const auto status = cudaMalloc(&address, whole); status != cudaSuccess) {
    auto available = size_t{0};
    auto total = size_t{0};
    static_cast<void>(cudaMemGetInfo(&available, &total));
    return cuda_failure(ec::io_failure,
                        "cannot allocate " + format_bytes(bytes) + " on " + device_name
                          + ", of which " + format_bytes(available) + " are free: cudaMalloc",
                        status);
  }
  auto memory = std::make_unique<cuda_memory>(device, address, bytes, memory_origin::allocated,
                                              "memory of " + device_name);
  HICACHE_TRY(check_cuda(ec::io_failure, "cannot clear device memory: cudaMemset",
                         cudaMemset(address, 0, whole)));
  // The copy streams do not wait for the stream of cudaMemset.
  HICACHE_TRY(check_cuda(ec::io_failure, "cannot clear device memory: cudaStreamSynchronize",
                         cudaStreamSynchronize(nullptr)));
  return memory;
}

result<std::unique_ptr<device_memory>> open_cuda_memory(int device, std::string_view shared) {
  const auto share = HICACHE_TRY(parse_cuda_share(shared));
  const auto scope = cuda_device_scope{device};
  HICACHE_TRY(scope.check(ec::io_failure));
  auto* address = static_cast<void*>(nullptr);
  HICACHE_TRY(
    check_cuda(ec::io_failure,
               "cannot open " + format_bytes(share.bytes)
                 + " of device memory of another process: cudaIpcOpenMemHandle",
               cudaIpcOpenMemHandle(&address, share.handle, cudaIpcMemLazyEnablePeerAccess)));
  return std::make_unique<cuda_memory>(device, address, share.bytes, memory_origin::opened,
                                       "device memory of another process");
}

result<std::unique_ptr<device_memory>> allocate_pinned_memory(int device, uint64_t bytes,
                                                              const host_memory_options& options) {
  HICACHE_CHECK(bytes > 0);
  const auto scope = cuda_device_scope{device};
  HICACHE_TRY(scope.check(ec::io_failure));
  return host_mapping::create(bytes, numa_node_of_device(device), options).and_then(pin);
}

result<std::unique_ptr<device_memory>> adopt_pinned_memory(int device, std::span<std::byte> memory,
                                                           const host_memory_options& options) {
  const auto scope = cuda_device_scope{device};
  HICACHE_TRY(scope.check(ec::io_failure));
  return host_mapping::adopt(memory, numa_node_of_device(device), options).and_then(pin);
}

} // namespace hicache
