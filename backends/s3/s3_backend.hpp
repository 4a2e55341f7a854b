#pragma once

#include "backends/blocking_store.hpp"
#include "backends/s3/s3_client.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Bounds of `s3_options::part_bytes`: S3 takes no smaller parts but the last of an upload, and
/// 10,000 of them.
inline constexpr uint64_t s3_part_min = uint64_t{5} << 20;
inline constexpr uint64_t s3_part_max = uint64_t{1} << 30;

struct s3_options {
  s3_bucket bucket;
  /// Precedes the names of all objects. Letters, digits and "-._~/"; at most 128.
  std::string key_prefix = "hicache/";
  /// A longer object is written and read in parts of this size, side by side.
  uint64_t part_bytes = uint64_t{16} << 20;
  /// Bound on the bytes of the objects that this process wrote; it evicts its own. 0: the rules of
  /// the bucket alone decide, and this process counts nothing.
  uint64_t max_bytes = 0;
  /// `fingerprint_of` the namespace. Objects of another one do not verify. Empty: objects of any
  /// verify, and none are written.
  std::optional<uint64_t> fingerprint = 0;
  /// Objects that do not verify are left alone.
  bool keeps_broken = false;
};

/// Stores objects in a bucket of S3, or of a server with its interface.
///
/// A call ends at its deadline. A write whose reply did not arrive in time has failed for its
/// caller, but the object may be there; the parts of an upload that was not ended stay until a rule
/// of the bucket removes them. An object that does not verify is removed.
/// @param clock Must outlive the store.
/// @returns invalid_argument; peer_unreachable or io_failure if the bucket cannot be used; with a
/// sentence
result<std::unique_ptr<blocking_store>> make_s3_backend(s3_options options,
                                                        const clock_source& clock);

} // namespace hicache
