#pragma once

#include "base/unique_mapping.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <string>

/// New memory, as a baseline takes it.
namespace hicache {

/// Maps fresh, untouched memory with transparent huge pages.
/// @returns io_failure with a sentence
result<unique_mapping> map_new_memory(uint64_t bytes);

/// Maps new memory and pins it with a single call. Only with CUDA.
/// @returns seconds, unmapping excluded
result<double> register_new_memory(uint64_t bytes);

/// Version supported by the installed driver, such as "13.0". Only with CUDA.
std::string cuda_driver_version();

} // namespace hicache
