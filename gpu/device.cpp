#include "gpu/device.hpp"

#include "base/names.hpp"
#include "base/numbers.hpp"
#include "gpu/cuda_device.hpp"
#include "gpu/host_device.hpp"

#include <array>

namespace hicache {

namespace {

constexpr auto io_names = std::to_array<std::string_view>({"direct", "kernel"});
constexpr auto device_names = std::to_array<std::string_view>({"auto", "cuda", "host"});

} // namespace

const char* to_string(io_backend io) noexcept {
  return name_of(io_names, io);
}

result<io_backend> parse_io_backend(std::string_view name) {
  return find_name<io_backend>(io_names, name, "a way to copy pages");
}

const char* to_string(device_kind kind) noexcept {
  return name_of(device_names, kind);
}

result<device_kind> parse_device_kind(std::string_view name) {
  return find_name<device_kind>(device_names, name, "a device");
}

result<device_choice> parse_device_choice(std::string_view text) {
  constexpr auto prefix = std::string_view{"cuda:"};
  if (!text.starts_with(prefix))
    return parse_device_kind(text).map([](device_kind kind) { return device_choice{kind}; });
  const auto number = parse_number<uint32_t>(text.substr(prefix.size()));
  if (!number)
    return fail(ec::invalid_argument,
                "'" + std::string{text} + "' is not a device; expected cuda:N with a number");
  return device_choice{device_kind::cuda, *number};
}

result<void> device::wait_for_layer(const layer_progress& progress, void*, uint32_t layer) {
  if (!progress.wait(layer))
    return fail(ec::copy_failed, "the load failed");
  return {};
}

result<std::unique_ptr<device>> make_device(const device_choice& choice,
                                            [[maybe_unused]] uint64_t pool) {
  const auto kind = choice.kind;
  if (kind == device_kind::host)
    return make_host_device();
#ifdef HICACHE_HAVE_CUDA
  auto cuda = make_cuda_device(choice.number, pool);
#else
  auto cuda = result<std::unique_ptr<device>>{
    fail(ec::unsupported, "this build has no CUDA device; configure it with -DHICACHE_CUDA=ON")};
#endif
  if (!cuda && kind == device_kind::automatic && cuda.error().code == ec::unsupported)
    return make_host_device();
  return cuda;
}

} // namespace hicache
