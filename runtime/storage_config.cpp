#include "base/limits.hpp"
#include "base/units.hpp"
#include "runtime/rank_config.hpp"

#include <nlohmann/json.hpp>

#include <toml++/toml.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

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

/// A setting that is a share of something.
struct share_key {
  std::string_view name;
  double most;
  const char* expected;
  double& (*of)(storage_config&);
};

constexpr auto of_segment = "a share of the segment above 0, at most 1";

constexpr auto shares = std::array{
  share_key{"prefetch_share", 0.5, "a share of L2 above 0, at most 0.5",
            [](storage_config& x) -> double& { return x.prefetch_share; }},
  share_key{"high_watermark", 1, of_segment,
            [](storage_config& x) -> double& { return x.segment.high_watermark; }},
  share_key{"low_watermark", 1, of_segment,
            [](storage_config& x) -> double& { return x.segment.low_watermark; }},
  share_key{"pinned_share", 1, of_segment,
            [](storage_config& x) -> double& { return x.segment.pinned_share; }},
  share_key{"tenant_share", 1, of_segment,
            [](storage_config& x) -> double& { return x.segment.tenant_share; }},
};

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
  // Seconds as a number, as SGLang has it, or a time with its unit.
  const auto time = [&](duration& target) -> result<void> {
    constexpr auto longest = 3600.0;
    if (value.is_number() && value.get<double>() >= 0 && value.get<double>() <= longest) {
      target
        = std::chrono::duration_cast<duration>(std::chrono::duration<double>(value.get<double>()));
      return {};
    }
    const auto read
      = value.is_string() ? parse_duration(value.get<std::string>()) : fail(ec::invalid_argument);
    if (!read || *read > std::chrono::hours{1})
      return wrong("seconds, or a time such as 250ms, of an hour at most");
    target = *read;
    return {};
  };
  if (key == "prefetch_threshold")
    return number(config.prefetch_threshold, 0);
  if (key == "prefetch_timeout_base")
    return time(config.prefetch_timeout_base);
  if (key == "prefetch_timeout_per_ki_token")
    return time(config.prefetch_timeout_per_ki_token);
  if (key == "prefetch_timeout_max")
    return time(config.prefetch_timeout_max);
  if (const auto at = std::ranges::find(shares, key, &share_key::name); at != shares.end()) {
    if (!value.is_number() || !(value.get<double>() > 0 && value.get<double>() <= at->most))
      return wrong(at->expected);
    at->of(config) = value.get<double>();
    return {};
  }
  if (key == "eviction") {
    auto policy = make_eviction_policy(value.is_string() ? value.get<std::string>() : "");
    if (!policy)
      return wrong("lru, lfu, fifo, mru, filo, priority or slru");
    config.segment.eviction = std::move(*policy);
    return {};
  }
  if (key == "replicas") {
    if (!value.is_number_unsigned() || value.get<uint64_t>() == 0
        || value.get<uint64_t>() > limits::replicas_per_key)
      return wrong("a number from 1 to 8");
    config.replicas = value.get<uint64_t>();
    return {};
  }
  if (key == "threads")
    return number(config.threads, 1);
  if (key == "tp_lcm_size")
    return number(config.tp_lcm_size, 1);
  if (key == "max_bytes" && value.is_string()) {
    const auto bytes = parse_bytes(value.get<std::string>());
    if (!bytes)
      return wrong("a size such as 64MiB");
    config.max_bytes = *bytes;
    return {};
  }
  if (key == "max_bytes")
    return number(config.max_bytes, 0);
  if (key == "path" || key == "host") {
    if (!value.is_string())
      return wrong(key == "path" ? "the name of a folder" : "the name of a machine");
    (key == "path" ? config.path : config.host) = value.get<std::string>();
    return {};
  }
  if (key == "force_remote_reads" || key == "zero_copy") {
    if (!value.is_boolean())
      return wrong("true or false");
    (key == "zero_copy" ? config.zero_copy : config.force_remote_reads) = value.get<bool>();
    return {};
  }
  return fail(ec::invalid_argument,
              "key '" + key
                + "' is not known; expected prefetch_threshold, prefetch_timeout_base, "
                  "prefetch_timeout_per_ki_token, prefetch_timeout_max, prefetch_share, path, "
                  "max_bytes, threads, tp_lcm_size, force_remote_reads, replicas, host, eviction, "
                  "high_watermark, low_watermark, pinned_share, tenant_share or zero_copy");
}

/// Reads a text, or the file behind an '@', into an object.
result<json> read_object(const std::string& text) {
  auto content = text;
  auto extension = std::string{};
  if (text.starts_with('@')) {
    const auto path = std::filesystem::path{text.substr(1)};
    auto file = std::ifstream{path};
    if (!file)
      return fail(ec::invalid_argument, "cannot read the file " + path.string());
    content.assign(std::istreambuf_iterator<char>{file}, {});
    extension = path.extension().string();
  }
  try {
    auto parsed = parse_text(content, extension);
    if (!parsed.is_object())
      return fail(ec::invalid_argument,
                  "expected keys and values, as in {\"prefetch_threshold\": 256}");
    static_cast<void>(parsed.dump()); // Throws for what is not UTF-8, which YAML lets through.
    return parsed;
  } catch (const std::exception& ex) {
    return fail(ec::invalid_argument, "cannot be read: " + std::string{ex.what()});
  }
}

} // namespace

result<storage_config> parse_storage_config(const std::string& text) {
  auto config = storage_config{};
  if (text.empty())
    return config;
  const auto object = read_object(text);
  if (!object)
    return tl::unexpected{object.error()};
  for (const auto& [key, value] : object->items())
    if (auto taken = take(config, key, value); !taken)
      return tl::unexpected{taken.error()};
  if (config.segment.low_watermark > config.segment.high_watermark)
    return fail(ec::invalid_argument,
                "key 'low_watermark' is above 'high_watermark'; expected it to be no higher");
  return config;
}

result<std::string> storage_config_json(const std::string& text) {
  if (text.empty())
    return text;
  const auto object = read_object(text);
  if (!object)
    return tl::unexpected{object.error()};
  return object->dump();
}

} // namespace hicache
