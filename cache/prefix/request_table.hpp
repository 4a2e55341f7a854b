#pragma once

#include "cache/prefix/slot_allocator.hpp"
#include "cache/radix/page_allocator.hpp"
#include "hicache/error.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// A row of the request table.
using row_index = uint32_t;

/// The slots of the tokens of each running request: a row of max_context slots per request, in one
/// block. Equal calls give equal rows: from row 0 up, then the most recently freed first. Failed
/// calls change nothing. Single-threaded.
class request_table {
public:
  /// Allocates rows * max_context slots.
  request_table(uint32_t rows, uint32_t max_context);

  /// Rows for a batch, in its order. A request that already has a row, as in chunked prefill, keeps
  /// it. Nothing if there are not enough rows for all others.
  std::optional<std::vector<row_index>> take(std::span<const request_id> batch);

  /// Sets the slots of tokens [from, from + values.size()) of a request.
  /// @returns unknown_id if the row is free; invalid_argument if it is too short.
  result<void> write(row_index row, uint32_t from, std::span<const slot_index> values);

  /// The slots of tokens [from, from + count); 0, the padding slot, where none was written. Valid
  /// until the row is written or given back. Errors as in write().
  result<std::span<const slot_index>> read(row_index row, uint32_t from, uint32_t count) const;

  /// Frees a row. @returns unknown_id if it is free already.
  result<void> give_back(row_index row);

  /// The row of a request, if any.
  std::optional<row_index> find(request_id request) const;

  uint32_t rows() const noexcept { return pool_.capacity(); }

  uint32_t max_context() const noexcept { return max_context_; }

  uint64_t free() const noexcept { return pool_.free(); }

private:
  /// Owner of a row, and how much of it was written.
  struct row_use {
    request_id owner = 0;
    uint32_t written = 0;
  };

  slot_index* at(row_index row, uint32_t token) noexcept {
    return slots_.data() + uint64_t{row} * max_context_ + token;
  }

  result<void> check(row_index row, uint64_t from, uint64_t count) const;

  uint32_t max_context_;
  /// Row r is page r + 1.
  page_allocator pool_;
  std::vector<row_use> uses_;
  std::vector<slot_index> slots_;
  absl::flat_hash_map<request_id, row_index> row_of_;
};

} // namespace hicache
