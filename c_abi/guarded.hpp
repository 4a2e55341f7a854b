#pragma once

#include "base/immovable.hpp"
#include "c_abi/batch.hpp"
#include "c_abi/client.hpp"
#include "hicache.h"
#include "hicache/error.hpp"

#include <caf/logger.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

/// Common prologue and epilogue of the functions of hicache.h.
namespace hicache {

/// A code that exists only in the ABI.
struct own_code {
  int32_t code;
  const char* name;
  const char* sentence;
};

/// @returns null if the code is not one of these
const own_code* find_own(int32_t code) noexcept;

/// Reports one of these codes to the caller.
/// @returns the code
/// @pre find_own(code) finds it
int32_t report_own(int32_t code, hc_error* to) noexcept;

/// Reports an invalid argument without allocating.
/// @returns its code
int32_t refuse(const char* what, hc_error* to) noexcept;

/// Makes the calling thread forget the client's actor system when a call ends: CAF keeps a
/// per-thread reference, and closing the client on another thread would wait for its release.
class forgetful_call : immovable {
public:
  ~forgetful_call() { caf::logger::set_current_actor_system(nullptr); }
};

/// Exception boundary of functions.
/// @param body Returns a result<void>, or nothing if it cannot fail.
template <class Body>
int32_t contained(hc_error* to, Body body) noexcept {
  const auto forgetful = forgetful_call{};
  try {
    if constexpr (std::is_void_v<decltype(body())>)
      body();
    else if (const auto done = body(); !done)
      return report(done.error(), to);
    return report({ec::none, {}}, to);
  } catch (const std::bad_alloc&) {
    return report_own(HC_OUT_OF_MEMORY, to);
  } catch (const std::system_error& ex) {
    return report({ec::io_failure, ex.what()}, to); // Thread limit reached.
  } catch (...) {
    return report_own(HC_INTERNAL, to);
  }
}

/// contained() for a client; rejects NULL and clients of another process.
template <class Body>
int32_t guarded(const hc_client* client, hc_error* to, Body body) noexcept {
  if (client == nullptr)
    return refuse("client: NULL; expected one that hc_open opened", to);
  if (!client->is_ours())
    return report_own(HC_FORKED, to);
  return contained(to, std::move(body));
}

/// Reads a struct that may be longer than the version known here.
template <class T>
result<T> taken(const T* given, const std::string& name) {
  if (given == nullptr)
    return fail(ec::invalid_argument, name + ": NULL");
  if (given->size < sizeof(T))
    return fail(ec::invalid_argument, name + ": size: " + std::to_string(given->size)
                                        + "; expected sizeof, " + std::to_string(sizeof(T)));
  const auto* bytes = reinterpret_cast<const std::byte*>(given);
  if (std::any_of(bytes + sizeof(T), bytes + given->size, [](auto x) { return x != std::byte{}; }))
    return fail(ec::unsupported, name + ": says more than this version of hicache knows");
  return *given;
}

/// Fills a struct that may be longer than the version known here.
template <class T>
result<void> give(T from, T* to, const std::string& name) {
  if (to == nullptr || to->size < sizeof(T))
    return fail(ec::invalid_argument,
                name + ": expected a struct whose size is " + std::to_string(sizeof(T)));
  from.size = to->size;
  std::memset(reinterpret_cast<std::byte*>(to) + sizeof(T), 0, to->size - sizeof(T));
  *to = from;
  return {};
}

} // namespace hicache
