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

  /// Runs one operation.
  /// @returns its answer, one JSON object without a line break; {"error":code,"message":text},
  /// without any change, if it fails; malformed_message if the line is no JSON object.
  result<std::string> run(std::string_view line);

  /// For tests; null before the first `config`.
  const prefix_cache* cache() const noexcept;

private:
  struct impl;

  std::unique_ptr<impl> impl_;
};

} // namespace hicache
