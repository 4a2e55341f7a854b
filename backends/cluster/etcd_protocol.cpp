#include "backends/cluster/etcd_protocol.hpp"

#include "backends/cluster/index_addresses.hpp"
#include "rpc/endpoint.hpp"

#include <absl/strings/escaping.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace hicache::etcd {

namespace {

using nlohmann::json;

/// Maximum length of a refusal's text.
constexpr auto refusal_bytes = size_t{200};

/// etcd's JSON encodes 64-bit integers as strings.
std::string number_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// @param read Extracts the result from the answer; may throw.
template <class Read>
auto parse(const std::string& body, Read read) -> result<decltype(read(json{}))> {
  try {
    return read(json::parse(body));
  } catch (const json::exception&) {
    return fail(ec::malformed_message, "etcd's answer is malformed");
  }
}

} // namespace

request list_request(const std::string& prefix) {
  // The range ends at the byte after the slash.
  return {"/v3/kv/range", json{{"key", absl::Base64Escape(prefix + "/")},
                               {"range_end", absl::Base64Escape(prefix + "0")},
                               {"limit", std::to_string(source_addresses)},
                               {"serializable", true}}
                            .dump()};
}

request lease_request(std::chrono::seconds time) {
  return {"/v3/lease/grant", json{{"TTL", std::to_string(time.count())}}.dump()};
}

request refresh_request(const std::string& lease) {
  return {"/v3/lease/keepalive", json{{"ID", lease}}.dump()};
}

request revoke_request(const std::string& lease) {
  return {"/v3/lease/revoke", json{{"ID", lease}}.dump()};
}

request put_request(const std::string& prefix, const std::string& address,
                    const std::string& lease) {
  return {"/v3/kv/put", json{{"key", absl::Base64Escape(prefix + "/" + address)},
                             {"value", absl::Base64Escape(address)},
                             {"lease", lease}}
                          .dump()};
}

result<std::vector<std::string>> read_list(const std::string& body) {
  return parse(body, [](const json& answer) {
    auto addresses = std::vector<std::string>{};
    for (const auto& pair : answer.value("kvs", json::array())) {
      auto address = std::string{};
      // Ignore values that are not addresses.
      if (absl::Base64Unescape(pair.value("value", std::string{}), &address)
          && rpc::parse_endpoint(address))
        addresses.push_back(std::move(address));
    }
    std::ranges::sort(addresses);
    return addresses;
  });
}

result<std::string> read_lease(const std::string& body) {
  return parse(body, [](const json& answer) { return number_of(answer.at("ID")); });
}

result<bool> read_refresh(const std::string& body) {
  return parse(body, [](const json& answer) {
    const auto& lease = answer.at("result");
    lease.at("ID");
    return lease.contains("TTL"); // An expired lease has no TTL.
  });
}

std::string read_refusal(const std::string& body) {
  const auto text = parse(body, [](const json& answer) {
    const auto& why = answer.at("error");
    return why.is_string() ? why.get<std::string>() : answer.at("message").get<std::string>();
  });
  return text.value_or(body).substr(0, refusal_bytes);
}

} // namespace hicache::etcd
