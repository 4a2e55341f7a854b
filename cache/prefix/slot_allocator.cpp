#include "cache/prefix/slot_allocator.hpp"

#include "base/check.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace hicache {

slot_allocator::slot_allocator(uint32_t pages, uint32_t page_size, page_order order)
  : page_size_(page_size), order_(order), pages_(pages, order) {
  HICACHE_CHECK(page_size > 0);
  HICACHE_CHECK((uint64_t{pages} + 1) * page_size - 1 <= std::numeric_limits<slot_index>::max());
}

result<slot_allocator::slots> slot_allocator::take(uint64_t count) {
  if (count % page_size_ != 0)
    return fail(ec::invalid_argument, std::to_string(count) + " slots are not whole pages of "
                                        + std::to_string(page_size_));
  const auto pages = pages_.take(count / page_size_);
  if (!pages)
    return std::nullopt;
  auto taken = std::vector<slot_index>(count);
  for (auto at = taken.begin(); const auto page : *pages) {
    std::iota(at, at + page_size_, page * page_size_);
    at += page_size_;
  }
  return taken;
}

result<slot_allocator::slots> slot_allocator::extend(std::span<const slot_extension> batch) {
  auto new_slots = uint64_t{0};
  auto new_pages = uint64_t{0};
  auto fits = true;
  for (auto i = size_t{0}; i < batch.size(); ++i) {
    const auto& [prefix_len, seq_len, last_slot] = batch[i];
    HICACHE_TRY(check(batch[i], i));
    // Prevents overflow of the sums where it matters.
    fits = fits && seq_len - prefix_len <= capacity();
    new_slots += seq_len - prefix_len;
    new_pages += pages_for(seq_len) - pages_for(prefix_len);
  }
  if (!fits)
    return std::nullopt;
  const auto pages = pages_.take(new_pages);
  if (!pages)
    return std::nullopt;
  auto taken = std::vector<slot_index>(new_slots);
  auto at = taken.begin();
  auto page = pages->begin();
  for (const auto& [prefix_len, seq_len, last_slot] : batch) {
    auto next = last_slot + 1;
    for (auto token = prefix_len; token < seq_len;) {
      const auto offset = token % page_size_;
      if (offset == 0)
        next = *page++ * page_size_;
      const auto run = std::min(page_size_ - offset, seq_len - token);
      const auto end = at + static_cast<std::ptrdiff_t>(run);
      std::iota(at, end, next);
      at = end;
      token += run;
    }
  }
  return taken;
}

result<slot_allocator::slots> slot_allocator::decode(std::span<const slot_decode> batch) {
  auto extensions = std::vector<slot_extension>{};
  extensions.reserve(batch.size());
  for (auto i = size_t{0}; i < batch.size(); ++i) {
    const auto& [seq_len, last_slot] = batch[i];
    if (seq_len == 0)
      return fail(ec::invalid_argument,
                  "request " + std::to_string(i) + " of the batch has no new token");
    extensions.push_back({seq_len - 1, seq_len, last_slot});
  }
  return extend(extensions);
}

result<uint64_t> slot_allocator::give_back(std::span<const slot_index> freed) {
  auto sorted = std::vector(freed.begin(), freed.end());
  if (!std::is_sorted(sorted.begin(), sorted.end()))
    std::sort(sorted.begin(), sorted.end());
  auto pages = std::vector<page_index>{};
  for (auto i = size_t{0}; i < sorted.size(); ++i) {
    const auto slot = sorted[i];
    if (!is_taken(slot))
      return fail(ec::invalid_argument, "slot " + std::to_string(slot) + " is not taken");
    if (i > 0 && slot == sorted[i - 1])
      return fail(ec::invalid_argument, "slot " + std::to_string(slot) + " is given back twice");
    if (const auto page = slot / page_size_; pages.empty() || pages.back() != page)
      pages.push_back(page);
  }
  pages_.give_back(pages);
  return pages.size() * page_size_;
}

result<void> slot_allocator::end_group() {
  if (!pages_.in_group())
    return fail(ec::invalid_argument, "a free group ends that did not begin");
  pages_.end_group();
  return {};
}

uint64_t slot_allocator::pages_for(uint64_t tokens) const noexcept {
  return tokens / page_size_ + (tokens % page_size_ != 0 ? 1 : 0);
}

result<void> slot_allocator::check(const slot_extension& extension, size_t place) const {
  const auto& [prefix_len, seq_len, last_slot] = extension;
  const auto name = [&] { return "request " + std::to_string(place) + " of the batch "; };
  if (seq_len < prefix_len)
    return fail(ec::invalid_argument, name() + "shrinks from " + std::to_string(prefix_len) + " to "
                                        + std::to_string(seq_len) + " tokens");
  const auto filled = prefix_len % page_size_;
  if (filled == 0)
    return {};
  if (!is_taken(last_slot) || last_slot % page_size_ != filled - 1)
    return fail(ec::invalid_argument, name() + "cannot have token " + std::to_string(prefix_len - 1)
                                        + " in slot " + std::to_string(last_slot)
                                        + (is_taken(last_slot) ? "" : ", which is not taken"));
  return {};
}

} // namespace hicache
