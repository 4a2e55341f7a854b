#include "cache/page_allocator.hpp"

#include "base/check.hpp"
#include "cache/mix.hpp"

#include <cstdio>

namespace hicache {

page_allocator::page_allocator(uint32_t capacity)
  : capacity_(capacity), taken_(uint64_t{capacity} + 1) {
  // nop
}

std::optional<std::vector<page_index>> page_allocator::take(uint64_t count) {
  if (count > free())
    return std::nullopt;
  auto pages = std::vector<page_index>{};
  pages.reserve(count);
  for (; count > 0 && !returned_.empty(); --count) {
    const auto page = returned_.back();
    returned_.pop_back();
    returned_digest_ -= mix(returned_.size(), page);
    pages.push_back(page);
  }
  for (; count > 0; --count)
    pages.push_back(++used_up_);
  for (const auto page : pages)
    taken_[page] = true;
  return pages;
}

void page_allocator::give_back(std::span<const page_index> pages) {
  for (const auto page : pages) {
    const auto returnable = is_taken(page);
    if (!returnable)
      std::fprintf(stderr, "page %u of a pool of %u pages was given back but is not taken\n", page,
                   capacity_);
    HICACHE_CHECK(returnable);
    taken_[page] = false;
    returned_digest_ += mix(returned_.size(), page);
    returned_.push_back(page);
  }
}

uint64_t page_allocator::digest() const noexcept {
  return mix(returned_digest_, mix(used_up_, returned_.size()));
}

} // namespace hicache
