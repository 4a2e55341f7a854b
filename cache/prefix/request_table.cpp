#include "cache/prefix/request_table.hpp"

#include "base/try.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace hicache {

request_table::request_table(uint32_t rows, uint32_t max_context)
  : max_context_(max_context), pool_(rows), uses_(rows), slots_(uint64_t{rows} * max_context) {
  // nop
}

std::optional<std::vector<row_index>> request_table::take(std::span<const request_id> batch) {
  auto fresh = std::vector<request_id>{};
  for (const auto request : batch)
    if (row_of_.try_emplace(request).second)
      fresh.push_back(request);
  const auto pages = pool_.take(fresh.size());
  if (!pages) {
    for (const auto request : fresh)
      row_of_.erase(request);
    return std::nullopt;
  }
  for (auto i = size_t{0}; i < fresh.size(); ++i) {
    const auto row = (*pages)[i] - 1;
    row_of_[fresh[i]] = row;
    uses_[row] = {.owner = fresh[i]};
  }
  auto rows = std::vector<row_index>{};
  rows.reserve(batch.size());
  for (const auto request : batch)
    rows.push_back(row_of_.at(request));
  return rows;
}

result<void> request_table::write(row_index row, uint32_t from,
                                  std::span<const slot_index> values) {
  HICACHE_TRY(check(row, from, values.size()));
  std::copy(values.begin(), values.end(), at(row, from));
  auto& written = uses_[row].written;
  written = std::max(written, from + static_cast<uint32_t>(values.size()));
  return {};
}

result<std::span<const slot_index>> request_table::read(row_index row, uint32_t from,
                                                        uint32_t count) const {
  HICACHE_TRY(check(row, from, count));
  return std::span{slots_}.subspan(uint64_t{row} * max_context_ + from, count);
}

result<void> request_table::give_back(row_index row) {
  HICACHE_TRY(check(row, 0, 0));
  const auto use = std::exchange(uses_[row], {});
  std::fill_n(at(row, 0), use.written, slot_index{0});
  row_of_.erase(use.owner);
  const auto page = row + 1;
  pool_.give_back(std::span{&page, 1});
  return {};
}

std::optional<row_index> request_table::find(request_id request) const {
  const auto found = row_of_.find(request);
  return found == row_of_.end() ? std::nullopt : std::optional{found->second};
}

result<void> request_table::check(row_index row, uint64_t from, uint64_t count) const {
  if (row >= rows() || !pool_.is_taken(row + 1))
    return fail(ec::unknown_id,
                "row " + std::to_string(row) + " of " + std::to_string(rows()) + " is not in use");
  if (from + count > max_context_)
    return fail(ec::invalid_argument, "row " + std::to_string(row) + " has "
                                        + std::to_string(max_context_) + " slots, not "
                                        + std::to_string(from + count));
  return {};
}

} // namespace hicache
