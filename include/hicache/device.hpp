#pragma once

#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

/// Device memory, device kinds and I/O backends.
namespace hicache {

/// A block of device memory (L1) or host memory (L2), freed with the object.
class device_memory {
public:
  device_memory() = default;
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  virtual ~device_memory() = default;

  /// The first byte. The CPU may dereference it in L2, and in L1 if the device is
  /// host_addressable().
  virtual std::byte* data() noexcept = 0;

  /// Size in bytes.
  virtual uint64_t size() const noexcept = 0;

  /// Human-readable kind of the memory ("2 MiB huge pages on NUMA node 0, pinned").
  virtual std::string description() const = 0;

  /// Copies `bytes` to `offset` and waits for the copy. For set-up, tests and checks, not for the
  /// hot path. Any thread.
  /// @pre offset + bytes.size() <= size()
  virtual result<void> write(uint64_t offset, std::span<const std::byte> bytes) = 0;

  /// Copies from `offset` to `bytes`, likewise.
  /// @pre offset + bytes.size() <= size()
  virtual result<void> read(uint64_t offset, std::span<std::byte> bytes) const = 0;

  /// A line of text with which another process of the same user on this machine can open the memory
  /// (device::open) while this object lives.
  /// @returns unsupported for memory that cannot be shared: L2, and memory that was itself opened.
  virtual result<std::string> share() const = 0;
};

/// How pages are copied.
/// - direct: the GPU's copy engines (memcpy on the host device) move runs of bytes.
/// - kernel: a kernel on a few SMs (threads on the host device) gathers and scatters pieces.
enum class io_backend : uint8_t { direct, kernel };

/// @relates io_backend
const char* to_string(io_backend io) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates io_backend
result<io_backend> parse_io_backend(std::string_view name);

/// The device to use. `automatic`: cuda if this build has it and a GPU is usable, else host.
enum class device_kind : uint8_t { automatic, cuda, host };

/// "auto", "cuda" or "host".
/// @relates device_kind
const char* to_string(device_kind kind) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates device_kind
result<device_kind> parse_device_kind(std::string_view name);

/// A kind of device, and the number of the device.
struct device_choice {
  // Not explicit: a kind alone is a choice.
  device_choice(device_kind which = device_kind::automatic, std::optional<uint32_t> n = {})
    : kind(which), number(n) {}

  device_kind kind;
  /// In the numbering of the CUDA runtime; if empty, make_device() chooses.
  std::optional<uint32_t> number;

  friend bool operator==(const device_choice&, const device_choice&) = default;
};

/// Accepts the names of parse_device_kind(), and "cuda:N".
/// @returns invalid_argument with the allowed forms.
/// @relates device_choice
result<device_choice> parse_device_choice(std::string_view text);

} // namespace hicache
