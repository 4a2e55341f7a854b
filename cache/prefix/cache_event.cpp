#include "cache/prefix/cache_event.hpp"

#include "base/check.hpp"

#include <utility>

namespace hicache {

namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, size_t skip = 0) {
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(skip), from.end());
}

} // namespace

int64_t event_id(const page_key& key) noexcept {
  auto id = uint64_t{0};
  for (auto i = size_t{0}; i < sizeof(id); ++i)
    id = id << 8 | key.bytes[i];
  return static_cast<int64_t>(id);
}

void event_queue::add(pages_stored event) {
  if (event.keys.empty())
    return;
  HICACHE_CHECK(event.tokens.size() > overlap_);
  auto* last = list_.empty() ? nullptr : std::get_if<pages_stored>(&list_.back());
  const auto continues = last != nullptr && last->medium == event.medium && last->ns == event.ns
                         && last->keys.back() == event.parent;
  if (!continues) {
    list_.emplace_back(std::move(event));
    return;
  }
  append(last->keys, event.keys);
  append(last->tokens, event.tokens, overlap_);
}

void event_queue::add(pages_removed event) {
  if (event.keys.empty())
    return;
  auto* last = list_.empty() ? nullptr : std::get_if<pages_removed>(&list_.back());
  if (last == nullptr || last->medium != event.medium) {
    list_.emplace_back(std::move(event));
    return;
  }
  append(last->keys, event.keys);
}

void event_queue::add(cache_cleared event) {
  list_.emplace_back(event);
}

std::vector<cache_event> event_queue::take() {
  return std::exchange(list_, {});
}

} // namespace hicache
