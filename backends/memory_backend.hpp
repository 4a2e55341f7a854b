#pragma once

#include "backends/blocking_store.hpp"

#include <memory>

namespace hicache {

/// Stores pages in this process's memory: for single-process use, and to test policies without I/O.
/// Evicts the least recently used pages.
/// @param max_bytes Bound on the bytes of the pages; 0 for none.
/// @param clock Must outlive the store.
std::unique_ptr<blocking_store> make_memory_backend(uint64_t max_bytes, const clock_source& clock);

} // namespace hicache
