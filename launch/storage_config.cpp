#include "base/units.hpp"
#include "launch/rank_config.hpp"

#include <nlohmann/json.hpp>

#include <toml++/toml.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace hicache {

namespace {

using json = nlohmann::json;

/// A YAML scalar has no type of its own: numbers and booleans are what reads as such.
json from_yaml(const YAML::Node& node) {
  auto object = json::object();
  for (const auto& entry : node) {
    const auto text = entry.second.as<std::string>();
    const auto value = json::parse(text, nullptr, false);
    object[entry.first.as<std::string>()] = value.is_discarded() ? json(text) : value;
  }
  return object;
}

/// Reads any of the three formats into JSON; throws what the parsers throw.
json parse_text(const std::string& text, const std::string& extension) {
  if (extension == ".toml") {
    auto printed = std::ostringstream{};
    const auto table = toml::parse(text);
    printed << toml::json_formatter{table};
    return json::parse(printed.str());
  }
  if (extension == ".yaml" || extension == ".yml")
    return from_yaml(YAML::Load(text));
  return json::parse(text);
}

result<void> take(storage_config& config, const std::string& key, const json& value) {
  const auto wrong = [&](const char* expected) {
    return fail(ec::invalid_argument,
                "key '" + key + "' holds " + value.dump() + "; expected " + expected);
  };
  const auto number = [&](uint64_t& target, uint64_t least) -> result<void> {
    if (!value.is_number_unsigned() || value.get<uint64_t>() < least)
      return wrong(least == 0 ? "a number" : "a positive number");
    target = value.get<uint64_t>();
    return {};
  };
  if (key == "prefetch_threshold")
    return number(config.prefetch_threshold, 0);
  if (key == "threads")
    return number(config.threads, 1);
  if (key == "max_bytes" && value.is_string()) {
    const auto bytes = parse_bytes(value.get<std::string>());
    if (!bytes)
      return wrong("a size such as 64MiB");
    config.max_bytes = *bytes;
    return {};
  }
  if (key == "max_bytes")
    return number(config.max_bytes, 0);
  if (key == "path") {
    if (!value.is_string())
      return wrong("the name of a folder");
    config.path = value.get<std::string>();
    return {};
  }
  if (key == "force_remote_reads") {
    if (!value.is_boolean())
      return wrong("true or false");
    config.force_remote_reads = value.get<bool>();
    return {};
  }
  return fail(ec::invalid_argument,
              "key '" + key
                + "' is not known; expected prefetch_threshold, path, max_bytes, "
                  "threads or force_remote_reads");
}

} // namespace

result<storage_config> parse_storage_config(const std::string& text) {
  auto config = storage_config{};
  if (text.empty())
    return config;
  auto content = text;
  auto extension = std::string{};
  if (text.front() == '@') {
    const auto path = std::filesystem::path{text.substr(1)};
    auto file = std::ifstream{path};
    if (!file)
      return fail(ec::invalid_argument, "cannot read the file " + path.string());
    content.assign(std::istreambuf_iterator<char>{file}, {});
    extension = path.extension().string();
  }
  try {
    const auto parsed = parse_text(content, extension);
    if (!parsed.is_object())
      return fail(ec::invalid_argument,
                  "expected keys and values, as in {\"prefetch_threshold\": 256}");
    for (const auto& [key, value] : parsed.items())
      if (auto taken = take(config, key, value); !taken)
        return tl::unexpected{taken.error()};
  } catch (const std::exception& ex) {
    return fail(ec::invalid_argument, "cannot be read: " + std::string{ex.what()});
  }
  return config;
}

} // namespace hicache
