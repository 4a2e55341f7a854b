#pragma once

#include "hicache/error.hpp"

#include <algorithm>
#include <vector>

namespace hicache {

/// The error of an object that is of another namespace, and need not be damaged.
inline error other_namespace() {
  return {ec::corrupt_page, "the object is of another namespace"};
}

/// Whether an object's outcome means that the store is broken. A full store, or one without the
/// object, works.
template <class T>
bool is_failure_of_store(const result<T>& object) {
  if (object)
    return false;
  const auto code = object.error().code;
  return code == ec::io_failure || code == ec::deadline_exceeded || code == ec::peer_unreachable;
}

/// The outcome of a batch for the store's breaker.
/// @returns the first object's code if all objects failed because of the store; else none
template <class T>
ec failure_of(const std::vector<result<T>>& objects) {
  return !objects.empty() && std::ranges::all_of(objects, is_failure_of_store<T>)
           ? objects.front().error().code
           : ec::none;
}

/// The same for a batch with one outcome.
template <class T>
ec failure_of(const result<T>& outcome) {
  return is_failure_of_store(outcome) ? outcome.error().code : ec::none;
}

} // namespace hicache
