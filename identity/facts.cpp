#include "identity/facts.hpp"

#include "base/json_fields.hpp"
#include "base/try.hpp"
#include "identity/model_folder.hpp"
#include "identity/tensor_file.hpp"

#include <filesystem>
#include <set>
#include <sstream>

namespace hicache {

namespace {

using json = nlohmann::json;

/// An engine's configuration has some ten KiB.
constexpr auto facts_bytes_max = size_t{4} << 20;
constexpr auto facts_levels_max = 64;

/// Characters of a value in a line.
constexpr auto shown_characters = size_t{120};

std::string in_short(const json& value) {
  if (value.is_null())
    return "nothing";
  auto text = value.is_string() ? value.get<std::string>()
                                : value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > shown_characters)
    text = text.substr(0, shown_characters) + "… (" + std::to_string(text.size()) + " bytes)";
  return text;
}

json field(const json& object, const std::string& name) {
  return object.is_object() ? object.value(name, json{}) : json{};
}

void add_words(const json& value, const std::string& name, std::vector<std::string>& lines) {
  if (!value.is_object() || value.empty()) {
    lines.push_back(name + ": " + in_short(value));
    return;
  }
  for (const auto& [below, inner] : value.items())
    add_words(inner, name.empty() ? below : name + "." + below, lines);
}

void add_differences(const json& one, const json& other, bool common_only, const std::string& name,
                     std::vector<std::string>& lines) {
  if (one == other || (common_only && (one.is_null() || other.is_null())))
    return;
  if (!one.is_object() || !other.is_object()) {
    lines.push_back(name + ": " + in_short(one) + " in the first, " + in_short(other)
                    + " in the second");
    return;
  }
  auto names = std::set<std::string>{};
  for (const auto* each : {&one, &other})
    for (const auto& [below, ignored] : each->items())
      names.insert(below);
  for (const auto& below : names)
    add_differences(field(one, below), field(other, below), common_only,
                    name.empty() ? below : name + "." + below, lines);
}

} // namespace

result<json> parse_facts(std::string_view text) {
  auto facts = parse_object(text, facts_bytes_max, facts_levels_max);
  if (!facts)
    return fail(ec::malformed_message, "these are no facts of an engine");
  return std::move(*facts);
}

result<json> facts_of_folder(const std::string& folder) {
  const auto content = HICACHE_TRY(read_model_content(folder));
  auto files = content.files;
  files.erase("config.json");
  auto model = json{{"weights", content.weights}, {"files", files}};
  const auto path = std::filesystem::path{folder} / "config.json";
  auto ignored = std::error_code{};
  if (std::filesystem::exists(path, ignored)) {
    const auto file = HICACHE_TRY(input_file::open(path));
    auto text = std::string(std::min<uint64_t>(file.bytes(), facts_bytes_max), '\0');
    HICACHE_TRY(file.read(0, text.data(), text.size()));
    model["configuration"] = HICACHE_TRY(parse_facts(text));
  }
  return json{{"model", std::move(model)}};
}

std::vector<std::string> facts_in_words(const json& facts) {
  auto lines = std::vector<std::string>{};
  add_words(facts, {}, lines);
  return lines;
}

std::vector<std::string> fact_differences(const json& one, const json& other, bool common_only) {
  auto lines = std::vector<std::string>{};
  add_differences(one, other, common_only, {}, lines);
  return lines;
}

} // namespace hicache
