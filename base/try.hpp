#pragma once

#include "hicache/error.hpp"

#include <type_traits>
#include <utility>

/// The value of a `result` (nothing of a `result<void>`); where it holds an error, the enclosing
/// function or lambda returns that error. A whole statement, initializer or right side of an
/// assignment, so that nothing is left half evaluated: `auto page = HICACHE_TRY(read(name));`.
#ifndef __clang_analyzer__
#define HICACHE_TRY(...)                                                                           \
  __extension__({                                                                                  \
    auto&& hicache_tried = __VA_ARGS__;                                                            \
    if (!hicache_tried)                                                                            \
      return ::tl::unexpected{std::move(hicache_tried).error()};                                   \
    ::hicache::detail::value_of(std::move(hicache_tried));                                         \
  })
#else
// The analyzer takes the variable that is initialized for one that the return destroys.
#define HICACHE_TRY(...) ::hicache::detail::value_of(__VA_ARGS__)
#endif

namespace hicache::detail {

template <class Result>
auto value_of(Result&& tried) {
  if constexpr (!std::is_void_v<typename std::remove_cvref_t<Result>::value_type>)
    return *std::forward<Result>(tried);
}

} // namespace hicache::detail
