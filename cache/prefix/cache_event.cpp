#include "cache/prefix/cache_event.hpp"

#include "base/check.hpp"
#include "base/overloaded.hpp"

#include <endian.h>

namespace hicache {

namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from, size_t skip = 0) {
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(skip), from.end());
}

std::vector<page_key> keys_of(const name_run& names) {
  const auto keys = names.get();
  return {keys.begin(), keys.end()};
}

pages_stored name(const stored_change& change) {
  const auto tokens = change.tokens.view();
  auto event = pages_stored{change.medium, change.ns, {}, keys_of(change.names), {}};
  event.tokens.assign(tokens.begin(), tokens.end());
  if (change.before.count > 0)
    event.parent = change.before.get().back();
  return event;
}

} // namespace

std::vector<cache_event> name_events(std::span<const cache_change> changes) {
  auto overlap = uint32_t{0};
  for (const auto& change : changes)
    if (const auto* stored = std::get_if<stored_change>(&change))
      overlap = stored->overlap;
  auto queue = event_queue{overlap};
  for (const auto& change : changes)
    std::visit(overloaded{
                 [&](const stored_change& x) { queue.add(name(x)); },
                 [&](const removed_change& x) {
                   queue.add(pages_removed{x.medium, keys_of(x.names)});
                 },
                 [&](const cache_cleared& x) { queue.add(x); },
               },
               change);
  return queue.take();
}

int64_t event_id(const page_key& key) noexcept {
  return static_cast<int64_t>(be64toh(first_word(key)));
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

} // namespace hicache
