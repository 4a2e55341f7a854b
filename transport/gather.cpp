#include "transport/gather.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace hicache {

namespace {

/// Seven, so that every word of a text is below the offer of the other ranks.
constexpr auto bytes_per_word = size_t{7};

constexpr auto end_of_texts = std::numeric_limits<int64_t>::max();

} // namespace

std::vector<int64_t> gather_offer(uint32_t rank, uint32_t size, std::span<const int64_t> values) {
  HICACHE_CHECK(rank < size);
  auto offer = std::vector<int64_t>(size * values.size(), std::numeric_limits<int64_t>::max());
  std::ranges::copy(values, offer.begin() + static_cast<std::ptrdiff_t>(rank * values.size()));
  return offer;
}

std::vector<std::span<const int64_t>> gathered(uint32_t size, std::span<const int64_t> reduced) {
  HICACHE_CHECK(size > 0 && reduced.size() % size == 0);
  const auto row_size = reduced.size() / size;
  auto rows = std::vector<std::span<const int64_t>>{};
  rows.reserve(size);
  for (uint32_t rank = 0; rank < size; ++rank)
    rows.push_back(reduced.subspan(rank * row_size, row_size));
  return rows;
}

std::vector<int64_t> text_offer(std::span<const std::string> texts, size_t words) {
  auto offer = std::vector<int64_t>{};
  for (const auto& text : texts) {
    offer.push_back(static_cast<int64_t>(text.size()));
    for (auto at = size_t{0}; at < text.size(); at += bytes_per_word) {
      auto word = int64_t{0};
      for (const auto c : text.substr(at, bytes_per_word))
        word = word << 8 | static_cast<uint8_t>(c);
      offer.push_back(word);
    }
  }
  HICACHE_CHECK(offer.size() < words);
  offer.resize(words, end_of_texts);
  return offer;
}

std::vector<std::string> offered_texts(std::span<const int64_t> reduced) {
  auto texts = std::vector<std::string>{};
  while (!reduced.empty() && reduced.front() != end_of_texts) {
    const auto size = static_cast<size_t>(reduced.front());
    const auto words = (size + bytes_per_word - 1) / bytes_per_word;
    HICACHE_CHECK(words < reduced.size());
    auto& text = texts.emplace_back(size, char{});
    for (auto at = size_t{0}; at < size; ++at) {
      const auto word = reduced[1 + at / bytes_per_word];
      const auto in_word = std::min(bytes_per_word, size - at / bytes_per_word * bytes_per_word);
      text[at] = static_cast<char>(word >> 8 * (in_word - 1 - at % bytes_per_word));
    }
    reduced = reduced.subspan(1 + words);
  }
  return texts;
}

} // namespace hicache
