#include "launch/kv_pattern.hpp"

#include "base/check.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <cstring>

namespace hicache {

namespace {

__extension__ using wide = unsigned __int128;

/// 128-bit multiplication, folded (the mixing step of wyhash): fast, and every input bit affects
/// every output bit.
uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<wide>(a ^ 0x2d358dccaa6c78a5) * (b ^ 0x8bb84b93962eacc9);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

} // namespace

kv_pattern::kv_pattern(const pool_geometry& geometry, device_memory& memory, bool host_addressable,
                       uint32_t first_head)
  : geometry_(geometry), memory_(memory), host_addressable_(host_addressable),
    first_head_(first_head) {
  HICACHE_CHECK(geometry.layout() == host_layout::layer_first);
}

std::string kv_pattern::model_id(std::string_view model) {
  auto id = std::string{"hicache-kv-pattern-1"};
  if (!model.empty())
    id.append("/").append(model);
  return id;
}

std::vector<uint64_t> kv_pattern::prefix_hashes(std::span<const token_id> tokens, uint64_t seed) {
  auto hashes = std::vector<uint64_t>(tokens.size());
  auto hash = seed;
  for (auto i = size_t{0}; i < tokens.size(); ++i)
    hashes[i] = hash = fold(hash, tokens[i]);
  return hashes;
}

void kv_pattern::fill_row(uint64_t hash, uint32_t layer, kv_part part,
                          std::span<std::byte> row) const {
  const auto head_bytes = row.size() / geometry_.shape().kv_heads;
  for (auto head = uint32_t{0}; head < geometry_.shape().kv_heads; ++head) {
    const auto place
      = (uint64_t{layer} << 34) | (uint64_t{first_head_ + head} << 2) | static_cast<uint64_t>(part);
    auto word = fold(hash, place);
    auto* target = row.data() + head * head_bytes;
    for (auto offset = size_t{0}; offset < head_bytes; offset += sizeof(word)) {
      std::memcpy(target + offset, &word, std::min(sizeof(word), head_bytes - offset));
      word = word * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019;
    }
  }
}

result<void> kv_pattern::compute(std::span<const uint64_t> hashes,
                                 std::span<const page_index> pages, uint64_t begin, uint64_t end) {
  const auto page_size = uint64_t{geometry_.shape().page_size};
  HICACHE_CHECK(end <= hashes.size() && end <= pages.size() * page_size);
  for (auto first = begin; first < end;) {
    const auto position = first / page_size;
    const auto last = std::min(end, (position + 1) * page_size);
    for (auto layer = uint32_t{0}; layer < geometry_.shape().layers; ++layer)
      for (const auto part : geometry_.parts()) {
        const auto place = geometry_.rows(layer, part, pages[position]);
        const auto offset = place.offset + (first - position * page_size) * place.row_bytes;
        const auto bytes = (last - first) * place.row_bytes;
        if (!host_addressable_)
          staging_.resize(bytes);
        auto* target = host_addressable_ ? memory_.data() + offset : staging_.data();
        for (auto token = first; token < last; ++token)
          fill_row(hashes[token], layer, part,
                   {target + (token - first) * place.row_bytes, place.row_bytes});
        if (!host_addressable_)
          HICACHE_TRY(memory_.write(offset, staging_));
      }
    first = last;
  }
  return {};
}

result<bool> kv_pattern::check(std::span<const uint64_t> hashes, std::span<const page_index> pages,
                               uint64_t position) {
  const auto page_size = uint64_t{geometry_.shape().page_size};
  HICACHE_CHECK((position + 1) * page_size <= hashes.size() && position < pages.size());
  for (auto layer = uint32_t{0}; layer < geometry_.shape().layers; ++layer)
    for (const auto part : geometry_.parts()) {
      const auto place = geometry_.rows(layer, part, pages[position]);
      const auto bytes = place.rows * place.row_bytes;
      if (!host_addressable_) {
        staging_.resize(bytes);
        HICACHE_TRY(memory_.read(place.offset, staging_));
      }
      const auto* found = host_addressable_ ? memory_.data() + place.offset : staging_.data();
      expected_.resize(place.row_bytes);
      for (auto token = uint64_t{0}; token < page_size; ++token) {
        fill_row(hashes[position * page_size + token], layer, part, expected_);
        if (std::memcmp(expected_.data(), found + token * place.row_bytes, place.row_bytes) != 0)
          return false;
      }
    }
  return true;
}

} // namespace hicache
