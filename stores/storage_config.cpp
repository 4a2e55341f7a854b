#include "stores/storage_config.hpp"

#include "backends/serde/object_codec.hpp"
#include "base/about.hpp"
#include "base/names.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/tiers/tier_rules.hpp"
#include "stores/storage_settings.hpp"

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <toml++/toml.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <variant>
#include <vector>

namespace hicache {

namespace {

using json = nlohmann::json;

/// YAML scalars are untyped: values that parse as numbers or booleans become such. An alias may
/// refer to a node that it lies in, so depth is limited.
json from_yaml(const YAML::Node& node, int depth = 0) {
  constexpr auto depth_max = 3; // A value of a tier.
  if (depth > depth_max)
    throw std::invalid_argument{"lists and tables are nested too deeply"};
  if (node.IsScalar()) {
    const auto text = node.as<std::string>();
    const auto value = json::parse(text, nullptr, false);
    return value.is_discarded() ? json(text) : value;
  }
  auto all = node.IsSequence() ? json::array() : json::object();
  for (const auto& entry : node)
    if (node.IsSequence())
      all.push_back(from_yaml(entry, depth + 1));
    else
      all[entry.first.as<std::string>()] = from_yaml(entry.second, depth + 1);
  return all;
}

/// Parses any of the three formats into JSON; throws the parsers' exceptions.
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

/// @returns false unless the value is in range
bool take(const setting_range& range, uint64_t& to, const json& value) {
  if (!value.is_number_unsigned())
    return false;
  to = value.get<uint64_t>();
  return range.has(static_cast<double>(to));
}

/// A share: the lower bound is exclusive, because a share of 0 is none.
bool take(const setting_range& range, double& to, const json& value) {
  if (!value.is_number())
    return false;
  to = value.get<double>();
  return to > range.least && to <= range.most;
}

bool take(const setting_range&, bool& to, const json& value) {
  to = value.is_boolean() && value.get<bool>();
  return value.is_boolean();
}

bool take(const setting_range&, std::string& to, const json& value) {
  to = value.is_string() ? value.get<std::string>() : "";
  return value.is_string();
}

bool take_size(uint64_t& to, const json& value) {
  const auto read = value.is_string()            ? parse_bytes(value.get<std::string>())
                    : value.is_number_unsigned() ? result<uint64_t>{value.get<uint64_t>()}
                                                 : fail(ec::invalid_argument);
  to = read.value_or(0);
  return read.has_value();
}

/// A number of seconds as in SGLang, or a time with its unit.
bool take(const setting_range& range, duration& to, const json& value) {
  if (value.is_number()) {
    const auto seconds = value.get<double>();
    if (!range.has(seconds))
      return false;
    to = std::chrono::duration_cast<duration>(std::chrono::duration<double>(seconds));
    return true;
  }
  const auto read
    = value.is_string() ? parse_duration(value.get<std::string>()) : fail(ec::invalid_argument);
  to = read.value_or(duration{});
  return read && range.has(std::chrono::duration<double>(to).count());
}

bool take(const setting_range&, eviction_policy_ptr& to, const json& value) {
  auto policy = make_eviction_policy(value.is_string() ? value.get<std::string>() : "");
  if (policy)
    to = std::move(*policy);
  return policy.has_value();
}

/// Keys of SGLang, for any store, for 3FS and for files, that mean nothing here: parents and names
/// of objects and the memory of L2 are hicache's own, the log on 3FS is no file of fixed pages, and
/// a folder has one bound, at which single pages are evicted.
bool is_sglang_key(std::string_view key) {
  constexpr auto keys = std::to_array<std::string_view>(
    {"hicache_storage_pass_prefix_keys", "interface_v1", "allocator", "file_path_prefix",
     "file_size", "numjobs", "entries", "metadata_server_url", "client_timeout",
     "use_mock_hf3fs_client", "min_free_space", "eviction_ratio", "enable_metadata_cache",
     "metadata_ttl"});
  return std::ranges::find(keys, key) != keys.end();
}

/// Takes SGLang's bound of a folder, which is for the files of each rank that writes: hicache's is
/// for all files. Keys come in the order of their names, so `max_bytes` is known already.
result<void> take_max_size(storage_config& config, const json& value) {
  auto bytes = uint64_t{0};
  if (!take_size(bytes, value))
    return fail(ec::invalid_argument, "key 'max_size' holds " + value.dump()
                                        + "; expected a number of bytes, or a size such as 64MiB");
  if (config.max_bytes > 0) {
    spdlog::warn("key 'max_size' of SGLang is ignored beside 'max_bytes'");
    return {};
  }
  spdlog::warn("key 'max_size' of SGLang bounds the files of each rank; here it is taken for "
               "'max_bytes', which bounds the folder");
  config.max_bytes = bytes;
  return {};
}

bool may_stand(key_place place, bool in_tier) {
  return place == key_place::store || (place == key_place::tier) == in_tier;
}

/// Whether a store uses a key. Until it is known which store, any may.
bool is_of(const storage_setting& setting, std::string_view backend) {
  if (backend.empty() || setting.place == key_place::tier || setting.backends == "all")
    return true;
  const auto is_named
    = setting.backends.find("`" + std::string{backend} + "`") != std::string::npos;
  return is_named != setting.backends.starts_with("all but");
}

/// @param why What is wrong with the key.
result<void> refuse(const std::string& key, const std::string& why, std::string_view backend,
                    bool in_tier) {
  auto names = std::vector<std::string_view>{};
  for (const auto& each : storage_settings())
    if (may_stand(each.place, in_tier) && is_of(each, backend))
      names.push_back(each.name);
  return fail(ec::invalid_argument,
              "key '" + key + "' is " + why + "; expected " + alternatives(names));
}

/// @param backend The store that the key is about.
/// @param in_tier Whether the key stands in a tier.
result<void> take(storage_config& config, const std::string& key, const json& value,
                  std::string_view backend, bool in_tier) {
  const auto settings = storage_settings();
  const auto found = std::ranges::find(settings, key, &storage_setting::name);
  const auto is_known = found != settings.end() && is_of(*found, backend);
  if (!is_known && is_external_store(backend)) {
    auto options = json::parse(config.external.options);
    options[key] = value;
    config.external.options = options.dump();
    return {};
  }
  if (key == "max_size" && backend == "file")
    return take_max_size(config, value);
  if (found == settings.end() && is_sglang_key(key)) {
    spdlog::warn("key '{}' of SGLang means nothing to hicache, and is ignored", key);
    return {};
  }
  if (found == settings.end() || !may_stand(found->place, in_tier))
    return refuse(key, "not known", backend, in_tier);
  if (!is_known) {
    auto stores = std::string{found->backends};
    std::erase(stores, '`');
    return refuse(key, "for " + stores + ", and the store is " + std::string{backend}, backend,
                  in_tier);
  }
  const auto is_good = std::visit(
    [&](auto to) {
      if constexpr (std::is_same_v<decltype(to), size_value>)
        return take_size(*to.bytes, value);
      else if constexpr (requires { take(found->range, *to, value); })
        return take(found->range, *to, value);
      else
        return false;
    },
    found->at(config));
  if (is_good)
    return {};
  return fail(ec::invalid_argument,
              "key '" + key + "' holds " + value.dump() + "; expected " + expected_of(*found));
}

/// Parses a text, or the file behind an '@', into an object.
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
    static_cast<void>(parsed.dump()); // Throws for invalid UTF-8, which YAML accepts.
    return parsed;
  } catch (const std::exception& ex) {
    return fail(ec::invalid_argument, "cannot be read: " + std::string{ex.what()});
  }
}

/// What one key says about another.
result<void> check(const storage_config& config) {
  HICACHE_TRY(about_input("key 'codecs'", serde::parse_codec_chain(config.codecs)));
  if (config.zero_copy && (config.codecs != "none" || !config.tiers.empty()))
    return fail(ec::invalid_argument,
                "key 'zero_copy' offers pages as they lie in L2; expected no 'codecs' and no "
                "'tiers' with it");
  if (!config.tiers.empty() && config.codecs != "none")
    return fail(ec::invalid_argument, "key 'codecs' is of use in each of the 'tiers'; expected it "
                                      "there");
  if (auto writes = parse_tier_writes(config.tier.write); !writes)
    return fail(ec::invalid_argument,
                "key 'write' holds \"" + config.tier.write + "\"; " + writes.error().detail);
  if (config.segment.low_watermark > config.segment.high_watermark)
    return fail(ec::invalid_argument,
                "key 'low_watermark' is above 'high_watermark'; expected it to be no higher");
  if (config.breaker.pause_min > config.breaker.pause_max)
    return fail(ec::invalid_argument,
                "key 'breaker_pause_min' is above 'breaker_pause_max'; expected it to be no "
                "longer");
  return {};
}

/// Names joined by dots.
bool is_python_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c >= 0x80;
  });
}

/// Takes all keys of a tier.
result<void> fill_tier(storage_config& tier, const json& object) {
  if (!object.is_object())
    return fail(ec::invalid_argument, "expected an object such as {\"backend\": \"memory\"}");
  const auto backend = object.find("backend");
  const auto store
    = backend != object.end() && backend->is_string() ? backend->get<std::string>() : std::string{};
  for (const auto& [key, value] : object.items())
    HICACHE_TRY(take(tier, key, value, store, true));
  if (tier.tier.backend.empty())
    return fail(ec::invalid_argument,
                std::string{"key 'backend' is missing; expected "} + any_store);
  return check(tier);
}

} // namespace

result<storage_config> parse_storage_config(const std::string& text, std::string_view backend) {
  auto config = storage_config{};
  if (text.empty())
    return config;
  const auto object = HICACHE_TRY(read_object(text));
  for (const auto& [key, value] : object.items()) {
    if (key == "tiers" && value.is_array())
      for (auto number = 1; const auto& tier : value)
        HICACHE_TRY(about_input("tier " + std::to_string(number++),
                                fill_tier(config.tiers.emplace_back(), tier)));
    else
      HICACHE_TRY(take(config, key, value, backend, false));
  }
  HICACHE_TRY(check(config));
  return config;
}

std::optional<missing_setting> missing_setting_of(std::string_view backend,
                                                  const storage_config& storage) {
  const auto& external = storage.external;
  if (backend == "file" && storage.path.empty())
    return missing_setting{"a folder", R"('{"path": "DIR"}')"};
  if ((backend == "disk" || backend == "hf3fs") && (storage.path.empty() || storage.max_bytes == 0))
    return missing_setting{"a folder and a size", R"('{"path": "DIR", "max_bytes": "SIZE"}')"};
  if (backend == "redis" && storage.redis.servers.empty())
    return missing_setting{"a server", R"('{"servers": "HOST:PORT"}')"};
  if (backend == "s3" && storage.s3.bucket.empty())
    return missing_setting{"a bucket", R"('{"bucket": "NAME"}')"};
  if (backend == "external" && external.socket.empty() == external.command.empty())
    return missing_setting{"a process", R"('{"socket": "PATH"}' or '{"command": "COMMAND"}')"};
  if (backend == "dynamic"
      && !(is_python_name(external.module_path) && is_python_name(external.class_name)))
    return missing_setting{"a class", R"('{"module_path": "MODULE", "class_name": "CLASS"}')"};
  return std::nullopt;
}

namespace {

/// Whether a store can be opened without a rank, and has all that it needs.
result<void> check_store(std::string_view backend, const storage_config& storage) {
  const auto name = "store '" + std::string{backend} + "'";
  if (std::ranges::find(store_names, backend) == store_names.end())
    return fail(ec::invalid_argument,
                name + " is not known; expected " + std::string{any_store} + ", or tiered");
  if (backend == "cluster" || backend == "node")
    return fail(ec::invalid_argument, name + " needs the actors of a rank; expected another one");
  if (const auto missing = missing_setting_of(backend, storage))
    return fail(ec::invalid_argument, name + " needs " + std::string{missing->what}
                                        + "; expected the extra configuration "
                                        + std::string{missing->example});
  return {};
}

} // namespace

result<void> check_rankless_stores(std::string_view backend, const storage_config& config) {
  if ((backend == "tiered") == config.tiers.empty())
    return fail(ec::invalid_argument,
                "store 'tiered' and key 'tiers' belong together; expected both or neither");
  if (config.tiers.empty())
    return check_store(backend, config);
  for (auto number = 1; const auto& tier : config.tiers)
    HICACHE_TRY(about("tier " + std::to_string(number++), check_store(tier.tier.backend, tier)));
  return {};
}

result<storage_config> parse_store(std::string_view backend, const std::string& extra_config) {
  auto config
    = HICACHE_TRY(about("the extra configuration", parse_storage_config(extra_config, backend)));
  HICACHE_TRY(check_rankless_stores(backend, config));
  return config;
}

result<std::string> storage_config_json(const std::string& text) {
  if (text.empty())
    return text;
  return read_object(text).map([](const json& object) { return object.dump(); });
}

} // namespace hicache
