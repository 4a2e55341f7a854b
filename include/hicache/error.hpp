#pragma once

#include <tl/expected.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace hicache {

/// Run-time error codes. The numbers are sent between processes: append, never renumber.
enum class ec : uint8_t {
  /// Not an error. CAF treats code 0 as success.
  none = 0,
  /// A flag, file or message holds a value that is not allowed.
  invalid_argument = 1,
  /// L1 has too few pages, even after eviction.
  out_of_device_pages = 2,
  /// L2 has too few pages, even after eviction.
  out_of_host_pages = 3,
  /// A request, node or operation that is not known (any more).
  unknown_id = 4,
  /// The ranks of the instance hold different trees; no further hits are served.
  ranks_diverged = 5,
  /// A rank did not take part in a reduction in time.
  rank_unresponsive = 6,
  /// A page is not in L3.
  not_found = 7,
  /// A stored page failed verification: magic, key, namespace, length, generation or checksum.
  corrupt_page = 8,
  /// The deadline passed first.
  deadline_exceeded = 9,
  /// A store has no room and nothing it may evict.
  store_full = 10,
  /// Reading, writing, mapping or allocating failed in the operating system.
  io_failure = 11,
  /// A peer process cannot be reached or went away.
  peer_unreachable = 12,
  /// Received bytes do not decode to the expected message.
  malformed_message = 13,
  /// A bound of base/limits.hpp was reached.
  limit_reached = 14,
  /// This backend, device or build does not support the operation.
  unsupported = 15,
  /// The component that should answer is shutting down.
  stopping = 16,
  /// The ranks of an instance were started with different settings.
  configuration_mismatch = 17,
  /// The copy engine reported a failure.
  copy_failed = 18,
  /// The device accepts no further copies.
  device_lost = 19,
  /// L3 is suspended for a while, because its calls failed or did not return.
  store_unavailable = 20,
  /// The role in the caller's certificate does not permit the operation.
  not_permitted = 21,
};

/// Number of enumerators of `ec`.
inline constexpr uint8_t ec_count = 22;

/// The identifier of a code, as in reports and logs ("ranks_diverged").
/// @relates ec
const char* to_string(ec code) noexcept;

/// The meaning of a code as a sentence without a full stop.
/// @relates ec
const char* sentence(ec code) noexcept;

/// A code with details. A value; never thrown.
struct error {
  ec code = ec::none;
  /// What was wrong and, for bad input, what was expected. May be empty.
  std::string detail;

  friend bool operator==(const error&, const error&) = default;
};

/// "code: detail", or the code's sentence if there is no detail.
/// @relates error
std::string to_string(const error& err);

/// A value or the error that prevented it.
template <class T>
using result = tl::expected<T, error>;

/// Shorthand for the error side of a `result`.
inline tl::unexpected<error> fail(ec code, std::string detail = {}) {
  return tl::unexpected<error>{error{code, std::move(detail)}};
}

} // namespace hicache
