#include "launch/router/prefix_index.hpp"

#include "cache/hash/page_hash.hpp"
#include "hicache/events.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace hicache {

namespace {

using nlohmann::json;

/// A page of more tokens is none (the limit of `--page-size`).
constexpr auto page_size_max = uint64_t{4096};

/// Levels of a message: array, events, event, tokens, pair.
constexpr auto levels_max = 6;

tl::unexpected<error> malformed(const char* what) {
  return fail(ec::malformed_message,
              std::string{"an event message is malformed: expected "} + what);
}

/// The ids of an event; nothing if they are no numbers.
std::optional<std::vector<int64_t>> ids_of(const json& event) {
  const auto found = event.find("block_hashes");
  if (found == event.end() || !found->is_array())
    return std::nullopt;
  auto ids = std::vector<int64_t>{};
  ids.reserve(found->size());
  for (const auto& each : *found) {
    if (!each.is_number_integer())
      return std::nullopt;
    ids.push_back(each.get<int64_t>());
  }
  return ids;
}

std::optional<page_shape> shape_of(const json& event) {
  const auto size = event.find("block_size");
  if (size == event.end() || !size->is_number_unsigned() || size->get<uint64_t>() == 0
      || size->get<uint64_t>() > page_size_max)
    return std::nullopt;
  const auto tokens = event.find("token_ids");
  const auto has_pairs
    = tokens != event.end() && tokens->is_array() && !tokens->empty() && tokens->front().is_array();
  return page_shape{size->get<uint32_t>(), has_pairs ? 1u : 0u};
}

std::string text_of(const json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Refuses messages of more levels, for which the reader would need as much stack.
class shallow_reader : public nlohmann::detail::json_sax_dom_parser<json> {
public:
  using nlohmann::detail::json_sax_dom_parser<json>::json_sax_dom_parser;

  bool start_object(size_t elements) {
    return ++level_ <= levels_max && json_sax_dom_parser::start_object(elements);
  }

  bool end_object() {
    --level_;
    return json_sax_dom_parser::end_object();
  }

  bool start_array(size_t elements) {
    return ++level_ <= levels_max && json_sax_dom_parser::start_array(elements);
  }

  bool end_array() {
    --level_;
    return json_sax_dom_parser::end_array();
  }

private:
  int level_ = 0;
};

/// @returns null if it is no MessagePack
json parse(std::string_view message) {
  auto parsed = json{};
  auto reader = shallow_reader{parsed, false};
  if (!json::sax_parse(message, &reader, json::input_format_t::msgpack))
    return nullptr;
  return parsed;
}

} // namespace

routed_prompt name_prompt(std::vector<token_id> tokens, std::string_view salt,
                          std::span<const page_shape> shapes) {
  auto prompt = routed_prompt{std::move(tokens), {}};
  const auto seed = event_seed({{}, std::string{salt}});
  for (const auto shape : shapes) {
    auto& ids = prompt.ids[shape];
    for (const auto& key :
         hash_pages(prompt.tokens, shape.page_size, seed ? &*seed : nullptr, shape.overlap))
      ids.push_back(event_id(key));
  }
  return prompt;
}

result<void> prefix_index::apply(instance_slot slot, std::string_view message) {
  const auto parsed = parse(message);
  if (!parsed.is_array() || parsed.size() < 2 || !parsed[1].is_array())
    return malformed("an array of the time and a list of events, in MessagePack");
  for (const auto& event : parsed[1]) {
    const auto type = event.is_object() ? text_of(event, "type") : std::string{};
    if (type == "AllBlocksCleared") {
      forget(slot);
      continue;
    }
    if (type != "BlockStored" && type != "BlockRemoved")
      continue;
    const auto ids = ids_of(event);
    if (!ids)
      return malformed("numbers as block_hashes");
    const auto is_l2 = text_of(event, "medium").starts_with("CPU");
    uint64_t holders::*const medium = is_l2 ? &holders::l2 : &holders::l1;
    if (type == "BlockRemoved") {
      for (const auto id : *ids)
        remove(slot, id, medium);
      continue;
    }
    const auto shape = shape_of(event);
    if (!shape)
      return malformed("a block_size from 1 to 4096");
    shapes_.at(slot) = *shape;
    for (const auto id : *ids)
      store(slot, id, medium);
  }
  return {};
}

void prefix_index::store(instance_slot slot, int64_t id, uint64_t holders::*medium) {
  auto at = held_.find(id);
  if (at == held_.end()) {
    if (held_.size() >= pages_max_ && !make_room())
      return;
    at = held_.try_emplace(id).first;
    ++unheld_;
  }
  auto& page = at->second;
  const auto bit = uint64_t{1} << slot;
  if ((page.l1 | page.l2) == 0)
    --unheld_;
  counts_.at(slot) += ((page.l1 | page.l2) & bit) == 0;
  page.*medium |= bit;
}

void prefix_index::remove(instance_slot slot, int64_t id, uint64_t holders::*medium) {
  const auto at = held_.find(id);
  const auto bit = uint64_t{1} << slot;
  if (at == held_.end() || (at->second.*medium & bit) == 0)
    return;
  auto& page = at->second;
  page.*medium &= ~bit;
  counts_.at(slot) -= ((page.l1 | page.l2) & bit) == 0;
  if ((page.l1 | page.l2) == 0)
    drop(at);
}

/// The last instance that had the page has it no more.
void prefix_index::drop(page_map::iterator at) {
  if (shares_l3_)
    ++unheld_;
  else
    held_.erase(at);
}

/// @returns whether there is room for another page
bool prefix_index::make_room() {
  if (unheld_ > 0)
    absl::erase_if(held_, [](const auto& each) { return (each.second.l1 | each.second.l2) == 0; });
  unheld_ = 0;
  return held_.size() < pages_max_;
}

void prefix_index::forget(instance_slot slot) {
  if (counts_.at(slot) == 0)
    return;
  counts_.at(slot) = 0;
  const auto others = ~(uint64_t{1} << slot);
  for (auto at = held_.begin(); at != held_.end();) {
    // An erased element leaves other iterators valid.
    const auto each = at++;
    auto& page = each->second;
    const auto was_held = (page.l1 | page.l2) != 0;
    page.l1 &= others;
    page.l2 &= others;
    if (was_held && (page.l1 | page.l2) == 0)
      drop(each);
  }
}

std::vector<page_shape> prefix_index::shapes() const {
  auto shapes = std::vector<page_shape>{};
  for (const auto shape : shapes_)
    if (shape.page_size > 0 && std::ranges::find(shapes, shape) == shapes.end())
      shapes.push_back(shape);
  return shapes;
}

cached_prefix prefix_index::find(instance_slot slot, const routed_prompt& prompt) const {
  const auto shape = shapes_.at(slot);
  const auto named = prompt.ids.find(shape);
  auto found = cached_prefix{};
  if (named == prompt.ids.end())
    return found;
  const auto bit = uint64_t{1} << slot;
  auto is_local = true;
  for (const auto id : named->second) {
    const auto at = held_.find(id);
    if (at == held_.end())
      break;
    is_local = is_local && ((at->second.l1 | at->second.l2) & bit) != 0;
    if (!is_local && !shares_l3_)
      break;
    auto& part = !is_local ? found.l3 : (at->second.l1 & bit) != 0 ? found.l1 : found.l2;
    part += shape.page_size;
  }
  return found;
}

} // namespace hicache
