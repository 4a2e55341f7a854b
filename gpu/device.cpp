#include "gpu/device.hpp"

#include "gpu/cuda_device.hpp"
#include "gpu/host_device.hpp"

namespace hicache {

const char* to_string(io_backend io) noexcept {
  switch (io) {
    case io_backend::direct:
      return "direct";
    case io_backend::kernel:
      return "kernel";
  }
  return "unknown";
}

result<io_backend> parse_io_backend(std::string_view name) {
  for (const auto io : {io_backend::direct, io_backend::kernel})
    if (name == to_string(io))
      return io;
  return fail(ec::invalid_argument,
              "'" + std::string{name} + "' is not a way to copy pages; expected direct or kernel");
}

const char* to_string(device_kind kind) noexcept {
  switch (kind) {
    case device_kind::automatic:
      return "auto";
    case device_kind::cuda:
      return "cuda";
    case device_kind::host:
      return "host";
  }
  return "unknown";
}

result<device_kind> parse_device_kind(std::string_view name) {
  for (const auto kind : {device_kind::automatic, device_kind::cuda, device_kind::host})
    if (name == to_string(kind))
      return kind;
  return fail(ec::invalid_argument,
              "'" + std::string{name} + "' is not a device; expected auto, cuda or host");
}

result<std::unique_ptr<device>> make_device(device_kind kind) {
  if (kind == device_kind::host)
    return make_host_device();
#ifdef HICACHE_HAVE_CUDA
  auto cuda = make_cuda_device();
#else
  auto cuda = result<std::unique_ptr<device>>{
    fail(ec::unsupported, "this build has no CUDA device; configure it with -DHICACHE_CUDA=ON")};
#endif
  if (!cuda && kind == device_kind::automatic)
    return make_host_device();
  return cuda;
}

} // namespace hicache
