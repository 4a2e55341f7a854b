#pragma once

/// Always-on assertion of an internal invariant. Prints the condition and aborts: a stopped cache
/// costs recomputation, a wrong one costs wrong answers. Legal failures return hicache::error.
#define HICACHE_CHECK(condition)                                                                   \
  (static_cast<bool>(condition) ? static_cast<void>(0)                                             \
                                : ::hicache::detail::check_failed(#condition, __FILE__, __LINE__))

namespace hicache::detail {

[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;

} // namespace hicache::detail
