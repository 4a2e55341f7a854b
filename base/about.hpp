#pragma once

#include "hicache/error.hpp"

#include <string>
#include <string_view>
#include <utility>

namespace hicache {

/// Puts what an error is about in front of its detail: "tier 1: ...".
template <class T>
result<T> about(std::string_view what, result<T> outcome) {
  if (!outcome)
    outcome.error().detail.insert(0, std::string{what} + ": ");
  return outcome;
}

/// `about` the flag, key or argument that was wrong: the code is invalid_argument.
template <class T>
result<T> about_input(std::string_view what, result<T> outcome) {
  if (!outcome)
    outcome.error().code = ec::invalid_argument;
  return about(what, std::move(outcome));
}

} // namespace hicache
