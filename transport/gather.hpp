#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// All-gather on top of a min-reduction: each rank offers its values in slots of its own and the
/// largest integer elsewhere, so the minimum is everyone's values. Pure functions; used to sum
/// reports and to compare configurations.
namespace hicache {

/// What rank `rank` of `size` offers so that all ranks get its `values`. Every rank passes equally
/// many values.
/// @returns size * values.size() elements
/// @pre rank < size
std::vector<int64_t> gather_offer(uint32_t rank, uint32_t size, std::span<const int64_t> values);

/// The values that each rank offered, row r from rank r. The rows point into `reduced`.
/// @param reduced The minimum of all ranks' offers.
/// @pre reduced.size() is a multiple of size
std::vector<std::span<const int64_t>> gathered(uint32_t size, std::span<const int64_t> reduced);

/// What a rank offers to a broadcast of texts. The other ranks offer no texts, which is the largest
/// integer in every word.
/// @param words The size of the offer, equal on all ranks; the texts take a seventh of a word for
/// each byte, and a word each.
/// @pre the texts fit
std::vector<int64_t> text_offer(std::span<const std::string> texts, size_t words);

/// The texts that one rank offered.
/// @param reduced The minimum of all ranks' offers.
std::vector<std::string> offered_texts(std::span<const int64_t> reduced);

} // namespace hicache
