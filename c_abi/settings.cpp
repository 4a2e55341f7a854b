#include "c_abi/settings.hpp"

#include "base/json_fields.hpp"
#include "base/limits.hpp"
#include "base/names.hpp"
#include "base/try.hpp"
#include "rpc/endpoint.hpp"

#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace hicache {

namespace {

/// Maximum bytes of a configuration. A few hundred are usual.
constexpr auto most_bytes = size_t{64} << 10;

/// Maximum JSON nesting: one object.
constexpr auto most_levels = 2;

/// Maximum open calls; each takes about a kilobyte.
constexpr auto most_calls = uint64_t{65536};

tl::unexpected<error> wrong(const std::string& key, const std::string& expected) {
  return fail(ec::invalid_argument, "configuration: \"" + key + "\": expected " + expected);
}

constexpr auto known_keys
  = std::to_array<std::string_view>({"socket", "address", "tls_cert", "tls_key", "tls_ca",
                                     "namespace", "tenant", "threads", "calls", "lease_ms"});

/// The settings that locate the node.
struct place_settings {
  std::optional<std::string> socket;
  std::optional<std::string> address;
};

result<void> read_fields(const nlohmann::json& object, client_settings& settings,
                         place_settings& place) {
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(known_keys, key) == known_keys.end())
      return fail(ec::invalid_argument, "configuration: \"" + key + "\" is not known; expected "
                                          + alternatives(known_keys));
  auto fields = json_fields{object};
  if (fields.has("socket"))
    place.socket = fields.text("socket");
  if (fields.has("address"))
    place.address = fields.text("address");
  settings.tls = {fields.text("tls_cert"), fields.text("tls_key"), fields.text("tls_ca")};
  settings.pages_namespace = fields.text("namespace");
  settings.tenant = fields.text("tenant");
  settings.threads
    = fields.number<size_t>("threads", 1, limits::node_client_requests, settings.threads);
  settings.calls = fields.number<size_t>("calls", 1, most_calls, settings.calls);
  const auto longest = std::chrono::milliseconds{limits::node_lease_time}.count();
  settings.lease = std::chrono::milliseconds{fields.number<int64_t>("lease_ms", 1, longest, 0)};
  return fields.finish("configuration: ");
}

/// Rewords an error about TLS flags in terms of configuration keys.
error in_terms_of_keys(error wrong) {
  for (auto at = wrong.detail.find("--tls-"); at != std::string::npos;
       at = wrong.detail.find("--tls-", at))
    wrong.detail.replace(at, 6, "tls_");
  wrong.detail = "configuration: " + wrong.detail;
  return wrong;
}

result<void> choose_node(const place_settings& place, client_settings& settings) {
  if (place.socket.has_value() == place.address.has_value())
    return wrong(place.socket ? "address" : "socket",
                 "one of \"socket\", a path of this machine, and \"address\", HOST:PORT");
  if (place.socket) {
    if (place.socket->empty() || place.socket->size() >= sizeof(sockaddr_un::sun_path)
        || place.socket->find('\0') != std::string::npos)
      return wrong("socket", "the path at which the node listens, of 107 bytes at most");
    if (settings.tls != tls_files{})
      return wrong("tls_cert", "no files of TLS with a socket of this machine");
    settings.node = "unix:" + *place.socket;
    return {};
  }
  const auto where = rpc::parse_endpoint(*place.address);
  if (!where || where->is_path() || where->port == 0
      || place.address->find('\0') != std::string::npos)
    return wrong("address", "where the node listens for other machines, such as 10.0.0.2:7767");
  if (const auto checked = settings.tls.check(); !checked)
    return tl::unexpected{in_terms_of_keys(checked.error())};
  settings.node = *place.address;
  return {};
}

} // namespace

result<client_settings> read_settings(std::string_view json) {
  const auto parsed = parse_object(json, most_bytes, most_levels);
  if (!parsed)
    return fail(
      ec::invalid_argument,
      R"(configuration: expected a JSON object such as {"socket": "/run/hicache/node", "namespace": "model"})");
  auto settings = client_settings{};
  auto place = place_settings{};
  HICACHE_TRY(read_fields(*parsed, settings, place));
  HICACHE_TRY(choose_node(place, settings));
  if (settings.pages_namespace.empty())
    return wrong("namespace", "a text that says whose pages these are: model, dtype, layout, rank");
  return settings;
}

} // namespace hicache
