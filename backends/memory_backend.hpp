#pragma once

#include "backends/blocking_store.hpp"

#include <memory>

namespace hicache {

/// Keeps pages in this process and forgets them with it: for single-process use, and to test
/// policies without I/O. Drops the pages used longest ago to make room.
/// @param max_bytes Bound on the bytes of the pages; 0 for none.
/// @param clock Must outlive the store.
std::unique_ptr<blocking_store> make_memory_backend(uint64_t max_bytes, const clock_source& clock);

} // namespace hicache
