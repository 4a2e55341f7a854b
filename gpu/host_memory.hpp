#pragma once

#include "base/error.hpp"
#include "gpu/device.hpp"

#include <cstdint>
#include <memory>

namespace hicache {

/// Refuses a size that the machine cannot back with memory now, so that the user reads a sentence
/// instead of meeting the kernel's out-of-memory killer.
/// @returns io_failure that names both sizes.
result<void> check_memory_available(uint64_t bytes);

/// Zeroed, page-aligned memory of the machine. The kernel backs it with huge pages where it can, on
/// first touch.
/// @returns io_failure with a sentence.
result<std::unique_ptr<device_memory>> allocate_host_memory(uint64_t bytes);

} // namespace hicache
