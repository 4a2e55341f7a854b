#include "cache/hash/page_names.hpp"

#include "base/check.hpp"
#include "cache/hash/page_hash.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

std::span<const page_key> name_run::get() const {
  return count == 0 ? std::span<const page_key>{} : names->get().subspan(first, count);
}

name_run name_run::cut_front(uint64_t at) {
  HICACHE_CHECK(at <= count);
  auto front = name_run{names, first, at};
  first += at;
  count -= at;
  return front;
}

page_names::page_names(std::vector<page_key> keys)
  : size_(keys.size()), is_ready_(true), keys_(std::move(keys)) {
  // nop
}

page_names::page_names(name_run prior, token_span tokens, uint32_t page_size, uint32_t overlap)
  : size_((tokens.size() - overlap) / page_size), page_size_(page_size), overlap_(overlap),
    is_ready_(false), prior_(std::move(prior)), tokens_(std::move(tokens)) {
  HICACHE_CHECK(size_ > 0);
}

page_names::~page_names() {
  // Unlinks a long chain without recursion.
  auto next = std::exchange(prior_.names, nullptr);
  while (next.use_count() == 1) {
    auto after = std::shared_ptr<const page_names>{};
    {
      const auto lock = std::lock_guard{next->mutex_};
      after = std::exchange(next->prior_.names, nullptr);
    }
    next = std::move(after);
  }
}

std::span<const page_key> page_names::get() const {
  if (!is_known()) {
    // The oldest unread names first, without recursion: chains may be long.
    auto chain = std::vector<std::shared_ptr<const page_names>>{};
    for (auto prior = unread_prior(); prior; prior = prior->unread_prior())
      chain.push_back(prior);
    for (; !chain.empty(); chain.pop_back())
      chain.back()->compute();
    compute();
  }
  return keys_;
}

std::shared_ptr<const page_names> page_names::unread_prior() const {
  const auto lock = std::lock_guard{mutex_};
  const auto& prior = prior_.names;
  return prior && !prior->is_known() ? prior : nullptr;
}

void page_names::compute() const {
  auto done = name_run{};
  const auto lock = std::lock_guard{mutex_};
  if (is_ready_.load(std::memory_order_relaxed))
    return;
  const auto before = prior_.get();
  keys_
    = hash_pages(tokens_.view(), page_size_, before.empty() ? nullptr : &before.back(), overlap_);
  tokens_ = {};
  std::swap(done, prior_);
  is_ready_.store(true, std::memory_order_release);
}

// -- path_names ---------------------------------------------------------------

path_names::path_names(std::vector<name_run> runs, name_run before)
  : runs_(std::move(runs)), before_(std::move(before)) {
  for (const auto& run : runs_)
    size_ += run.count;
}

std::vector<page_key> path_names::get(uint64_t first, uint64_t count) const {
  HICACHE_CHECK(first + count <= size_);
  auto keys = std::vector<page_key>{};
  keys.reserve(count);
  auto begin = uint64_t{0};
  for (const auto& run : runs_) {
    const auto from = std::max(begin, first);
    const auto to = std::min(begin + run.count, first + count);
    if (from < to) {
      const auto part = run.get().subspan(from - begin, to - from);
      keys.insert(keys.end(), part.begin(), part.end());
    }
    begin += run.count;
  }
  return keys;
}

page_key path_names::before(uint64_t first) const {
  if (first > 0)
    return get(first - 1, 1).front();
  return before_.count == 0 ? page_key{} : before_.get().back();
}

} // namespace hicache
