#include "c_abi/settings.hpp"

#include "base/limits.hpp"

#include <nlohmann/json.hpp>

#include <sys/un.h>

#include <cstdint>
#include <optional>

namespace hicache {

namespace {

/// Bytes of a configuration: some hundred are used, and what reads JSON is recursive.
constexpr auto most_bytes = size_t{64} << 10;

/// Levels of JSON in it: one object.
constexpr auto most_levels = 2;

/// Calls that may be open: each takes about a kilobyte.
constexpr auto most_calls = uint64_t{65536};

tl::unexpected<error> wrong(const std::string& key, const std::string& expected) {
  return fail(ec::invalid_argument, "configuration: \"" + key + "\": expected " + expected);
}

result<void> read_text(const std::string& key, const nlohmann::json& value, std::string& text) {
  if (!value.is_string())
    return wrong(key, "a text");
  text = value.get<std::string>();
  return {};
}

result<uint64_t> read_number(const std::string& key, const nlohmann::json& value, uint64_t least,
                             uint64_t most) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() < least || value.get<uint64_t>() > most)
    return wrong(key, "a number from " + std::to_string(least) + " to " + std::to_string(most));
  return value.get<uint64_t>();
}

result<void> read_entry(const std::string& key, const nlohmann::json& value,
                        client_settings& settings) {
  if (key == "socket")
    return read_text(key, value, settings.socket);
  if (key == "namespace")
    return read_text(key, value, settings.pages_namespace);
  if (key == "tenant")
    return read_text(key, value, settings.tenant);
  auto number = result<uint64_t>{};
  if (key == "threads") {
    number = read_number(key, value, 1, limits::node_client_requests);
    settings.threads = number.value_or(0);
  } else if (key == "calls") {
    number = read_number(key, value, 1, most_calls);
    settings.calls = number.value_or(0);
  } else if (key == "lease_ms") {
    const auto longest = std::chrono::milliseconds{limits::node_lease_time}.count();
    number = read_number(key, value, 1, static_cast<uint64_t>(longest));
    settings.lease = std::chrono::milliseconds{number.value_or(0)};
  } else {
    return fail(
      ec::invalid_argument,
      "configuration: \"" + key
        + "\" is not known; expected socket, namespace, tenant, threads, calls or lease_ms");
  }
  if (!number)
    return tl::unexpected{number.error()};
  return {};
}

/// @returns nothing if it is not JSON, or too deep
std::optional<nlohmann::json> parse(std::string_view text) {
  auto is_too_deep = false;
  const auto look = [&is_too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    is_too_deep = is_too_deep || depth > most_levels;
    return !is_too_deep;
  };
  auto parsed = nlohmann::json::parse(text, look, false);
  if (is_too_deep || parsed.is_discarded())
    return std::nullopt;
  return parsed;
}

} // namespace

result<client_settings> read_settings(std::string_view json) {
  const auto parsed = json.size() <= most_bytes ? parse(json) : std::nullopt;
  if (!parsed || !parsed->is_object())
    return fail(
      ec::invalid_argument,
      R"(configuration: expected a JSON object such as {"socket": "/run/hicache/node", "namespace": "model"})");
  auto settings = client_settings{};
  for (const auto& [key, value] : parsed->items())
    if (const auto read = read_entry(key, value, settings); !read)
      return tl::unexpected{read.error()};
  if (settings.socket.empty() || settings.socket.size() >= sizeof(sockaddr_un::sun_path)
      || settings.socket.find('\0') != std::string::npos)
    return wrong("socket", "the path at which the node listens, of 107 bytes at most");
  if (settings.pages_namespace.empty())
    return wrong("namespace", "a text that says whose pages these are: model, dtype, layout, rank");
  return settings;
}

} // namespace hicache
