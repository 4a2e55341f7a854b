#pragma once

namespace hicache {

/// A visitor made of functions, for `std::visit`: `overloaded{[](const a&) {…}, [](const b&) {…}}`.
template <class... Functions>
struct overloaded : Functions... {
  using Functions::operator()...;
};

template <class... Functions>
overloaded(Functions...) -> overloaded<Functions...>;

} // namespace hicache
