#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "hicache/error.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace hicache {

/// The interpreter of `hicachectl oplog run`: drives one cache, without ranks and without bytes,
/// from JSON objects (`docs/oplog.md`). Copies finish at once. Lengths are in tokens.
class op_script {
public:
  op_script();

  ~op_script();

  /// Carries out one operation.
  /// @returns its answer, one JSON object without a line break. An operation that cannot be done
  /// answers {"error":code,"message":text} and changes nothing.
  /// Fails with malformed_message if the line is no JSON object.
  result<std::string> run(std::string_view line);

  /// The cache, for tests; null before the first `config`.
  const prefix_cache* cache() const noexcept;

private:
  struct impl;

  std::unique_ptr<impl> impl_;
};

} // namespace hicache
