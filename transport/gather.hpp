#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// All-gather by min-reduction: each rank fills its own slots and the largest integer elsewhere, so
/// the minimum is all ranks' values. Pure; used to sum reports and compare configurations.
namespace hicache {

/// The offer that gives all ranks the `values` of this one. Every rank passes equally many values.
/// @returns size * values.size() elements
/// @pre rank < size
std::vector<int64_t> gather_offer(uint32_t rank, uint32_t size, std::span<const int64_t> values);

/// Splits the result by rank: row r holds the values of rank r. The rows point into `reduced`.
/// @param reduced The minimum of all ranks' offers.
/// @pre reduced.size() is a multiple of size
std::vector<std::span<const int64_t>> gathered(uint32_t size, std::span<const int64_t> reduced);

/// A rank's offer in a broadcast of texts. Other ranks offer none: all words are the largest
/// integer.
/// @param words Size of the offer, equal on all ranks: per text one, plus one per seven bytes.
/// @pre the texts fit
std::vector<int64_t> text_offer(std::span<const std::string> texts, size_t words);

/// Decodes the texts that one rank offered.
/// @param reduced The minimum of all ranks' offers.
std::vector<std::string> offered_texts(std::span<const int64_t> reduced);

} // namespace hicache
