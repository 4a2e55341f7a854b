#include "backends/serde/object_codec.hpp"
#include "base/limits.hpp"
#include "base/units.hpp"
#include "cache/tiers/tier_rules.hpp"
#include "runtime/rank_settings.hpp"

#include <absl/strings/str_join.h>
#include <nlohmann/json.hpp>

#include <toml++/toml.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
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

constexpr auto a_time = "seconds, or a time such as 250ms, of an hour at most";
constexpr auto within_an_hour = setting_range{0, 3600};
constexpr auto within_a_year = setting_range{0, 366 * 24 * 3600};
constexpr auto codec_names = "none, or fp8, zstd or lz4, aes-256-gcm joined by '+' in this order";
constexpr auto of_segment = "a share of the segment above 0, at most 1";
template <auto Member>
setting_value in_segment(storage_config& x) {
  return &(x.segment.*Member);
}

template <auto Member>
setting_value in_tier(storage_config& x) {
  return &(x.tier.*Member);
}

template <auto Member>
setting_value in_redis(storage_config& x) {
  return &(x.redis.*Member);
}

template <auto Member>
setting_value in_breaker(storage_config& x) {
  return &(x.breaker.*Member);
}

constexpr auto settings = std::to_array<storage_setting>({
  {{"prefetch_threshold",
    "TOKENS",
    at<&storage_config::prefetch_threshold>,
    "a shorter tail is not looked for in L3",
    {0, no_end}},
   "all",
   "a number"},
  {{"prefetch_timeout_base", "TIME", at<&storage_config::prefetch_timeout_base>,
    "policy `timeout`: a prefetch takes at most base + per_ki_token * tokens / 1024; seconds, or "
    "times such as `\"250ms\"`",
    within_an_hour},
   "all",
   a_time},
  {{"prefetch_timeout_per_ki_token", "TIME", at<&storage_config::prefetch_timeout_per_ki_token>,
    "as above", within_an_hour},
   "all",
   a_time},
  {{"prefetch_timeout_max", "TIME", at<&storage_config::prefetch_timeout_max>,
    "the most of that, however many tokens there are", within_an_hour},
   "all",
   a_time},
  {{"prefetch_share",
    "X",
    at<&storage_config::prefetch_share>,
    "share of L2 that is set aside for pages on their way from L3",
    {0, 0.5}},
   "all",
   "a share of L2 above 0, at most 0.5"},
  {{"path", "DIR", at<&storage_config::path>, "the folder; created if it does not exist"},
   "`file`, `disk`",
   "the name of a folder",
   key_place::store},
  {{"max_bytes", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.max_bytes}; },
    "`memory`, `disk`: most bytes of all ranks of the instance together; `file`: most bytes of the "
    "folder's pages, whoever wrote them; `redis`: most bytes that this instance wrote and has not "
    "removed; a number or a size such as `\"64MiB\"`; 0 is without bound"},
   "`memory`, `file`, `disk`, `redis`",
   "a number of bytes, or a size such as 64MiB",
   key_place::store},
  {{"threads", "N", at<&storage_config::threads>, "worker threads of the backend", {1, no_end}},
   "all",
   "a positive number",
   key_place::store},
  {{"breaker_failures",
    "N",
    in_breaker<&breaker_policy::failures>,
    "failed or late calls of one kind in a row after which [no call goes to "
    "L3](operations.md#an-l3-that-fails-or-hangs)",
    {1, no_end}},
   "all",
   "a positive number"},
  {{"breaker_pause_min",
    "TIME",
    in_breaker<&breaker_policy::pause_min>,
    "how long that lasts before L3 is tried with one page; it doubles with each such try that "
    "fails",
    {0.1, 3600}},
   "all",
   "seconds, or a time such as 250ms, from 100ms to an hour"},
  {{"breaker_pause_max",
    "TIME",
    in_breaker<&breaker_policy::pause_max>,
    "the most of that",
    {0.1, 3600}},
   "all",
   "seconds, or a time such as 250ms, from 100ms to an hour"},
  {{"tp_lcm_size",
    "N",
    at<&storage_config::tp_lcm_size>,
    "mha: a common multiple of the ranks of all instances that share pages, and a divisor or a "
    "multiple of the KV heads; makes fewer, larger [objects](backends.md#objects). Absent, or a "
    "multiple of the KV heads: an object for each head, which suits every number of ranks",
    {1, no_end}},
   "all",
   "a positive number"},
  {{"force_remote_reads", "BOOL", at<&storage_config::force_remote_reads>,
    "read by the network also from owners on the same machine; for tests and measurements"},
   "`cluster`",
   "true or false",
   key_place::store},
  {{"replicas",
    "N",
    at<&storage_config::replicas>,
    "copies of each page that a rank stores, its own among them, [on different "
    "hosts](cluster.md#placement)",
    {1, limits::replicas_per_key}},
   "`cluster`",
   "a number from 1 to 8",
   key_place::store},
  {{"host", "NAME", at<&storage_config::host>,
    "what counts as one host; the machine's name if absent"},
   "`cluster`",
   "the name of a machine",
   key_place::store},
  {{"eviction", "NAME", in_segment<&segment_policy::eviction>,
    "which page of the segment goes first: as for `--radix-eviction-policy`"},
   "`cluster`",
   "lru, lfu, fifo, mru, filo, priority or slru",
   key_place::store},
  {{"high_watermark",
    "X",
    in_segment<&segment_policy::high_watermark>,
    "share of the segment: a page that would fill it beyond makes room down to `low_watermark`",
    {0, 1}},
   "`cluster`",
   of_segment,
   key_place::store},
  {{"low_watermark",
    "X",
    in_segment<&segment_policy::low_watermark>,
    "share of the segment at which that ends",
    {0, 1}},
   "`cluster`",
   of_segment,
   key_place::store},
  {{"pinned_share",
    "X",
    in_segment<&segment_policy::pinned_share>,
    "share of the segment that hard pins may keep",
    {0, 1}},
   "`cluster`",
   of_segment,
   key_place::store},
  {{"tenant_share",
    "X",
    in_segment<&segment_policy::tenant_share>,
    "share of the segment that the pages of one tenant may have",
    {0, 1}},
   "`cluster`",
   of_segment,
   key_place::store},
  {{"repair_bytes_per_second", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.repair.bytes_per_second}; },
    "most bytes a second that others read from this rank to replace [lost "
    "copies](cluster.md#placement); 0 is without bound"},
   "`cluster`",
   "a number of bytes, or a size such as 64MiB",
   key_place::store},
  {{"repair_delay", "TIME", [](storage_config& x) -> setting_value { return &x.repair.delay; },
    "how long a rank waits with that after the index has told it of the loss: a member that "
    "restarts in that time brings its copies back",
    within_an_hour},
   "`cluster`",
   a_time,
   key_place::store},
  {{"zero_copy", "BOOL", at<&storage_config::zero_copy>,
    "offer pages of L2 [where they lie](cluster.md#zero-copy), instead of copying them to the "
    "segment. Needs a `--hicache-mem-layout` in which an object is one piece: `page_head`, or "
    "`page_first` and `page_first_direct` where `tp_lcm_size` makes all heads of a rank one "
    "object, or the attention keeps a latent"},
   "`cluster`",
   "true or false"},
  {{"servers", "HOST:PORT,...", in_redis<&redis_config::servers>,
    "the server; of a cluster some of its servers, the others are found through them"},
   "`redis`",
   "addresses such as 10.0.0.7:6379, separated by commas",
   key_place::store},
  {{"redis_cluster", "BOOL", in_redis<&redis_config::is_cluster>, "they are a Redis Cluster"},
   "`redis`",
   "true or false",
   key_place::store},
  {{"key_prefix", "TEXT", in_redis<&redis_config::key_prefix>, "precedes the name of each value"},
   "`redis`",
   "at most 128 printable characters without spaces and braces",
   key_place::store},
  {{"chunk_bytes", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.redis.chunk_bytes}; },
    "bytes of an object in one value, from 4 KiB to 256 MiB; longer objects take several"},
   "`redis`",
   "a number of bytes, or a size such as 4MiB",
   key_place::store},
  {{"ttl", "TIME", in_redis<&redis_config::ttl>,
    "how long the server keeps an object after its write; 0 is for ever", within_a_year},
   "`redis`",
   "seconds, or a time such as 24h",
   key_place::store},
  {{"user", "NAME", in_redis<&redis_config::user>,
    "user of the server's ACL; its default user if absent"},
   "`redis`",
   "the name of a user",
   key_place::store},
  {{"password_file", "FILE", in_redis<&redis_config::password_file>,
    "the file whose first line is the password; read for each connection"},
   "`redis`",
   "the name of a file",
   key_place::store},
  {{"password_variable", "NAME", in_redis<&redis_config::password_variable>,
    "the environment variable that holds the password, instead of a file"},
   "`redis`",
   "the name of a variable",
   key_place::store},
  {{"tls", "BOOL", in_redis<&redis_config::uses_tls>, "connections use TLS"},
   "`redis`",
   "true or false",
   key_place::store},
  {{"tls_ca", "FILE", in_redis<&redis_config::tls_ca>,
    "authorities (PEM) that may have signed the server's certificate; the system's if absent"},
   "`redis`",
   "the name of a file",
   key_place::store},
  {{"tls_cert", "FILE", in_redis<&redis_config::tls_cert>, "this client's certificate (PEM)"},
   "`redis`",
   "the name of a file",
   key_place::store},
  {{"tls_key", "FILE", in_redis<&redis_config::tls_key>,
    "the certificate's key (PEM), without a passphrase"},
   "`redis`",
   "the name of a file",
   key_place::store},
  {{"tls_name", "NAME", in_redis<&redis_config::tls_name>,
    "the name in the server's certificate; the host of its address if absent"},
   "`redis`",
   "the name of a host",
   key_place::store},
  {{"codecs", "NAMES", at<&storage_config::codecs>,
    "how objects are [converted, compressed and encrypted](backends.md#codecs) on their way to the "
    "store: `fp8`, `zstd` or `lz4`, `aes-256-gcm`, joined by `+` in this order, or `none`; "
    "instances find objects of the same `fp8` and `aes-256-gcm` only"},
   "all",
   codec_names,
   key_place::store},
  {{"zstd_level",
    "N",
    at<&storage_config::zstd_level>,
    "codec `zstd`: the least is fastest",
    {1, 19}},
   "all",
   "a number from 1 to 19",
   key_place::store},
  {{"key_file", "FILE", at<&storage_config::key_file>,
    "codec `aes-256-gcm`: the file with the [keys](backends.md#keys)"},
   "all",
   "the name of a file",
   key_place::store},
  {{"key_command", "COMMAND", at<&storage_config::key_command>,
    "the shell command that prints them, instead of a file"},
   "all",
   "a shell command",
   key_place::store},
  {{"codec_threads",
    "N",
    at<&storage_config::codec_threads>,
    "threads that encode and decode",
    {1, 64}},
   "all",
   "a number from 1 to 64",
   key_place::store},
  {{"codec_bytes", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.codec_bytes}; },
    "memory for encoded objects on their way, [several of the longest for each "
    "thread](backends.md#codecs)"},
   "all",
   "a number of bytes, or a size such as 64MiB",
   key_place::store},
  {{"tiers", "LIST",
    [](storage_config& x) -> setting_value {
      return named_value{&x.tiers, [](const void*) { return std::string{}; }, nullptr};
    },
    "the [tiers](backends.md#tiered), fastest first: objects with the keys below and those of a "
    "store"},
   "`tiered`",
   "a list of objects such as [{\"backend\": \"memory\"}, {\"backend\": \"file\", \"path\": "
   "\"DIR\"}]"},
  {{"parallel_lookup", "BOOL", at<&storage_config::parallel_lookup>,
    "a look-up asks all tiers at once, not each for what those above it lack"},
   "`tiered`",
   "true or false"},
  {{"copy_bytes", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.copy_bytes}; },
    "memory for objects on their way between tiers; what finds none is not copied"},
   "`tiered`",
   "a number of bytes, or a size such as 64MiB"},
  {{"backend", "NAME", in_tier<&tier_config::backend>, "the tier's store"},
   "a tier",
   any_store,
   key_place::tier},
  {{"write", "RULE", in_tier<&tier_config::write>,
    "which objects are written to the tier: `all`; `hits:N`, at their N-th use; or `never`"},
   "a tier",
   "all, never, or hits:N with N from 1 to 1000",
   key_place::tier},
  {{"promote", "BOOL", in_tier<&tier_config::promote>,
    "objects that a lower tier had are written to the tier at their second use"},
   "a tier",
   "true or false",
   key_place::tier},
  {{"write_bytes_per_second", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.tier.write_bytes_per_second}; },
    "most bytes written to the tier in a second; what is more is not written. 0 is without bound"},
   "a tier",
   "a number of bytes, or a size such as 64MiB",
   key_place::tier},
  {{"write_bytes_per_day", "SIZE",
    [](storage_config& x) -> setting_value { return size_value{&x.tier.write_bytes_per_day}; },
    "the same in a day, for the wear of an SSD"},
   "a tier",
   "a number of bytes, or a size such as 64MiB",
   key_place::tier},
});

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

bool may_stand(key_place place, bool in_tier) {
  return place == key_place::store || (place == key_place::tier) == in_tier;
}

result<void> unknown(const std::string& key, bool in_tier) {
  auto names = std::vector<std::string>{};
  for (const auto& each : settings)
    if (may_stand(each.place, in_tier))
      names.emplace_back(each.name);
  const auto last = names.back();
  names.pop_back();
  return fail(ec::invalid_argument, "key '" + key + "' is not known; expected "
                                      + absl::StrJoin(names, ", ") + " or " + last);
}

/// @param in_tier Whether the key stands in a tier.
result<void> take(storage_config& config, const std::string& key, const json& value, bool in_tier) {
  const auto found = std::ranges::find(settings, key, &storage_setting::name);
  if (found == settings.end() || !may_stand(found->place, in_tier))
    return unknown(key, in_tier);
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
  return fail(ec::invalid_argument, "key '" + key + "' holds " + value.dump() + "; expected "
                                      + std::string{found->expected});
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
  if (auto chain = serde::parse_codec_chain(config.codecs); !chain)
    return fail(ec::invalid_argument, "key 'codecs': " + chain.error().detail);
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

/// Takes all keys of a tier.
result<void> fill_tier(storage_config& tier, const json& object) {
  if (!object.is_object())
    return fail(ec::invalid_argument, "expected an object such as {\"backend\": \"memory\"}");
  for (const auto& [key, value] : object.items())
    if (auto taken = take(tier, key, value, true); !taken)
      return taken;
  if (tier.tier.backend.empty())
    return fail(ec::invalid_argument,
                std::string{"key 'backend' is missing; expected "} + any_store);
  return check(tier);
}

/// Takes all keys of an object.
result<void> fill(storage_config& config, const json& object) {
  for (const auto& [key, value] : object.items()) {
    if (key == "tiers" && value.is_array()) {
      for (const auto& tier : value)
        if (auto filled = fill_tier(config.tiers.emplace_back(), tier); !filled)
          return fail(ec::invalid_argument,
                      "tier " + std::to_string(config.tiers.size()) + ": " + filled.error().detail);
    } else if (auto taken = take(config, key, value, false); !taken) {
      return taken;
    }
  }
  return check(config);
}

} // namespace

std::span<const storage_setting> storage_settings() {
  return settings;
}

result<storage_config> parse_storage_config(const std::string& text) {
  if (text.empty())
    return storage_config{};
  const auto object = read_object(text);
  if (!object)
    return tl::unexpected{object.error()};
  auto config = storage_config{};
  if (auto filled = fill(config, *object); !filled)
    return tl::unexpected{filled.error()};
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
