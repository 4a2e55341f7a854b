#include "gpu/device.hpp"

#include "gpu/cuda_device.hpp"
#include "gpu/host_device.hpp"

namespace hicache {

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

result<std::unique_ptr<device>> make_device(device_kind kind, copy_threads threads) {
  if (kind == device_kind::host)
    return make_host_device(threads);
#ifdef HICACHE_HAVE_CUDA
  auto cuda = make_cuda_device(threads);
#else
  auto cuda = result<std::unique_ptr<device>>{
    fail(ec::unsupported, "this build has no CUDA device; configure it with -DHICACHE_CUDA=ON")};
#endif
  if (!cuda && kind == device_kind::automatic)
    return make_host_device(threads);
  return cuda;
}

} // namespace hicache
