#include "cache/event_message.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

using nlohmann::json;

const char* medium_name(cache_medium medium) {
  return medium == cache_medium::device ? "GPU" : "CPU_PINNED";
}

json::array_t ids_of(std::span<const page_key> keys) {
  auto ids = json::array_t{};
  ids.reserve(keys.size());
  for (const auto& key : keys)
    ids.emplace_back(event_id(key));
  return ids;
}

/// @param overlap 1 with bigrams: then the last token belongs to the pair before it.
json::array_t units_of(std::span<const token_id> tokens, uint64_t overlap) {
  auto units = json::array_t{};
  units.reserve(tokens.size());
  for (auto i = size_t{0}; i + overlap < tokens.size(); ++i)
    if (overlap == 0)
      units.emplace_back(tokens[i]);
    else
      units.emplace_back(json::array_t{tokens[i], tokens[i + 1]});
  return units;
}

class message_writer {
public:
  explicit message_writer(uint32_t page_size) : page_size_(page_size) {}

  void operator()(const pages_stored& event) {
    const auto overlap = event.tokens.size() - event.keys.size() * page_size_;
    HICACHE_CHECK(overlap <= 1);
    const auto most
      = std::clamp<size_t>(limits::router_event_tokens / page_size_, 1, limits::router_event_pages);
    auto parent = event.parent ? json(event_id(*event.parent)) : json();
    for (auto from = size_t{0}; from < event.keys.size(); from += most) {
      const auto keys
        = std::span{event.keys}.subspan(from, std::min(most, event.keys.size() - from));
      const auto tokens
        = std::span{event.tokens}.subspan(from * page_size_, keys.size() * page_size_ + overlap);
      auto stored = json::array_t{
        "BlockStored", ids_of(keys), std::move(parent),        units_of(tokens, overlap),
        page_size_,    nullptr,      medium_name(event.medium)};
      if (!event.ns.salt.empty())
        stored.emplace_back(json::object_t{{"cache_salt", event.ns.salt}});
      list_.emplace_back(std::move(stored));
      parent = event_id(keys.back());
    }
  }

  void operator()(const pages_removed& event) {
    for (auto rest = std::span{event.keys}; !rest.empty();) {
      const auto keys = rest.first(std::min(limits::router_event_pages, rest.size()));
      list_.emplace_back(json::array_t{"BlockRemoved", ids_of(keys), medium_name(event.medium)});
      rest = rest.subspan(keys.size());
    }
  }

  void operator()(const cache_cleared&) { list_.emplace_back(json::array_t{"AllBlocksCleared"}); }

  json::array_t take() { return std::move(list_); }

private:
  uint32_t page_size_;
  json::array_t list_;
};

} // namespace

std::string event_message(double seconds, std::span<const cache_event> events, uint32_t page_size) {
  HICACHE_CHECK(page_size > 0);
  auto writer = message_writer{page_size};
  for (const auto& event : events)
    std::visit(writer, event);
  auto message = std::string{};
  json::to_msgpack(json::array_t{seconds, writer.take(), 0}, message);
  return message;
}

} // namespace hicache
