#include "cache/radix/page_allocator.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

namespace hicache {

namespace {

// Positions in the free list are below 2^32. Waiting pages share one position: they get sorted.
// Held pages share one, too: those that hold them determine their order.
constexpr auto waiting_place = uint64_t{1} << 32;
constexpr auto first_grouped_place = uint64_t{2} << 32;
constexpr auto held_place = uint64_t{3} << 32;

} // namespace

page_allocator::page_allocator(uint32_t capacity, page_order order)
  : capacity_(capacity), order_(order), taken_(capacity / word_bits + 1) {
  // nop
}

std::optional<std::vector<page_index>> page_allocator::take(uint64_t count) {
  if (count > free())
    return std::nullopt;
  if (count > listed())
    sort_waiting_pages();
  auto pages = std::vector<page_index>(count);
  const auto reused = std::min<uint64_t>(count, returned_.size());
  const auto rest = returned_.size() - reused;
  std::reverse_copy(returned_.begin() + static_cast<std::ptrdiff_t>(rest), returned_.end(),
                    pages.begin());
  returned_.resize(rest);
  for (auto i = uint64_t{0}; i < reused; ++i)
    lists_digest_ -= mix(rest + reused - 1 - i, pages[i]);
  for (auto i = reused; i < count; ++i)
    pages[i] = ++used_up_;
  for (const auto page : pages)
    flip(page);
  return pages;
}

void page_allocator::give_back(std::span<const page_index> pages) {
  if (holds_.empty())
    return put_back(pages);
  auto loose = std::vector<page_index>{};
  for (const auto page : pages) {
    const auto entry = holds_.find(page);
    if (entry == holds_.end()) {
      loose.push_back(page);
      continue;
    }
    HICACHE_CHECK(!std::exchange(entry->second.is_given_back, true));
    ++held_back_;
    lists_digest_ += mix(held_place, page);
  }
  put_back(loose);
}

void page_allocator::hold(std::span<const page_index> pages) {
  for (const auto page : pages) {
    HICACHE_CHECK(is_taken(page));
    ++holds_[page].count;
  }
}

void page_allocator::release(std::span<const page_index> pages) {
  auto loose = std::vector<page_index>{};
  for (const auto page : pages) {
    const auto entry = holds_.find(page);
    HICACHE_CHECK(entry != holds_.end());
    if (--entry->second.count > 0)
      continue;
    if (entry->second.is_given_back) {
      --held_back_;
      lists_digest_ -= mix(held_place, page);
      loose.push_back(page);
    }
    holds_.erase(entry);
  }
  put_back(loose);
}

void page_allocator::put_back(std::span<const page_index> pages) {
  for (const auto page : pages) {
    const auto returnable = is_taken(page);
    if (!returnable)
      std::fprintf(stderr, "page %u of a pool of %u pages was given back but is not taken\n", page,
                   capacity_);
    HICACHE_CHECK(returnable);
    flip(page);
  }
  if (!in_group()) {
    make_free(pages);
    return;
  }
  for (auto place = first_grouped_place + grouped_.size(); const auto page : pages)
    lists_digest_ += mix(place++, page);
  grouped_.insert(grouped_.end(), pages.begin(), pages.end());
}

void page_allocator::end_group() {
  HICACHE_CHECK(in_group());
  if (--group_depth_ > 0)
    return;
  for (auto place = first_grouped_place; const auto page : grouped_)
    lists_digest_ -= mix(place++, page);
  make_free(grouped_);
  grouped_.clear();
}

uint64_t page_allocator::digest() const noexcept {
  const auto depth = uint64_t{group_depth_} << 32;
  return mix(lists_digest_, mix(used_up_, depth + returned_.size()));
}

void page_allocator::make_free(std::span<const page_index> pages) {
  if (order_ == page_order::ascending) {
    for (const auto page : pages)
      lists_digest_ += mix(waiting_place, page);
    waiting_.insert(waiting_.end(), pages.begin(), pages.end());
    return;
  }
  for (auto place = returned_.size(); const auto page : pages)
    lists_digest_ += mix(place++, page);
  returned_.insert(returned_.end(), pages.begin(), pages.end());
}

void page_allocator::sort_waiting_pages() {
  for (const auto page : waiting_)
    lists_digest_ -= mix(waiting_place, page);
  for (auto place = uint64_t{0}; const auto page : returned_)
    lists_digest_ -= mix(place++, page);
  returned_.insert(returned_.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
  std::sort(returned_.begin(), returned_.end(), std::greater<>{});
  for (auto place = uint64_t{0}; const auto page : returned_)
    lists_digest_ += mix(place++, page);
}

} // namespace hicache
