#include "cache/prefix/event_message.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/names.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace hicache {

namespace {

/// Keeps map keys in the order of the engines' own messages.
using json = nlohmann::ordered_json;

json::array_t ids_of(std::span<const page_key> keys) {
  auto ids = json::array_t{};
  ids.reserve(keys.size());
  for (const auto& key : keys)
    ids.emplace_back(event_id(key));
  return ids;
}

/// @param overlap 1 with bigrams: the last token belongs to the pair before it.
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
  message_writer(event_format format, uint32_t page_size)
    : format_(format), page_size_(page_size) {}

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
      const auto is_first = parent.is_null();
      auto stored = json{{"type", "BlockStored"},
                         {"block_hashes", ids_of(keys)},
                         {"parent_block_hash", std::move(parent)},
                         {"token_ids", units_of(tokens, overlap)},
                         {"block_size", page_size_},
                         {"lora_id", nullptr},
                         {"medium", medium_name(event.medium)}};
      add_namespace(stored, event.ns, keys.size(), is_first);
      list_.push_back(std::move(stored));
      parent = event_id(keys.back());
    }
  }

  void operator()(const pages_removed& event) {
    for (auto rest = std::span{event.keys}; !rest.empty();) {
      const auto keys = rest.first(std::min(limits::router_event_pages, rest.size()));
      list_.push_back({{"type", "BlockRemoved"},
                       {"block_hashes", ids_of(keys)},
                       {"medium", medium_name(event.medium)}});
      rest = rest.subspan(keys.size());
    }
  }

  void operator()(const cache_cleared&) { list_.push_back({{"type", "AllBlocksCleared"}}); }

  json take() { return std::move(list_); }

private:
  const char* medium_name(cache_medium medium) const {
    if (medium == cache_medium::l1)
      return "GPU";
    return format_ == event_format::vllm ? "CPU" : "CPU_PINNED";
  }

  /// An adapter's key is its name for routers: the ids of its pages are its own.
  /// @param is_first Whether the first page begins a prompt.
  void add_namespace(json& stored, const cache_namespace& ns, size_t pages, bool is_first) const {
    const auto adapter = ns.extra_key.empty() ? json() : json(ns.extra_key);
    if (format_ == event_format::sglang) {
      if (!ns.salt.empty())
        stored["cache_salt"] = ns.salt;
      if (!adapter.is_null())
        stored["lora_name"] = adapter;
      return;
    }
    stored["lora_name"] = adapter;
    if (!adapter.is_null() || !ns.salt.empty()) {
      auto keys = json::array_t(pages, adapter.is_null() ? json() : json(json::array_t{adapter}));
      if (is_first && !ns.salt.empty())
        keys[0].push_back(ns.salt);
      stored["extra_keys"] = std::move(keys);
    }
    stored["group_idx"] = 0;
    stored["kv_cache_spec_kind"] = "full_attention";
  }

  event_format format_;
  uint32_t page_size_;
  json list_ = json::array();
};

} // namespace

result<event_format> parse_event_format(std::string_view name) {
  return find_name<event_format>(std::to_array<std::string_view>({"sglang", "vllm"}), name);
}

std::string event_message(event_format format, double seconds, std::span<const cache_event> events,
                          uint32_t page_size) {
  HICACHE_CHECK(page_size > 0);
  auto writer = message_writer{format, page_size};
  for (const auto& event : events)
    std::visit(writer, event);
  auto message = std::string{};
  json::to_msgpack(json::array({seconds, writer.take(), 0}), message);
  return message;
}

} // namespace hicache
