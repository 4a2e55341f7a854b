#include "backends/cluster/index_place.hpp"

#include "base/socket_address.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace hicache {

namespace {

constexpr auto srv_scheme = std::string_view{"srv://"};
constexpr auto etcd_scheme = std::string_view{"etcd://"};
constexpr auto etcds_scheme = std::string_view{"etcds://"};

/// Maximum length of a DNS name, and of an etcd prefix: that of a file system path.
constexpr auto name_bytes = size_t{253};
constexpr auto prefix_bytes = size_t{4096};

bool is_name_part(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'
         || c == '_' || c == '.';
}

result<index_place> parse_srv(const std::string& text) {
  constexpr auto option = std::string_view{"server="};
  const auto mark = std::min(text.find('?'), text.size());
  auto place = srv_place{text.substr(srv_scheme.size(), mark - srv_scheme.size()), {}};
  if (place.name.empty() || place.name.size() > name_bytes
      || !std::ranges::all_of(place.name, is_name_part))
    return fail(ec::invalid_argument,
                "'" + text + "' names no SRV record such as srv://_hicache._tcp.example.org");
  if (mark == text.size())
    return place;
  const auto rest = text.substr(mark + 1);
  auto server
    = rpc::parse_endpoint(rest.starts_with(option) ? rest.substr(option.size()) : std::string{});
  if (!server || !is_ip_address(server->host))
    return fail(ec::invalid_argument,
                "'" + rest + "' names no DNS server such as server=127.0.0.1:53");
  place.server = std::move(*server);
  return place;
}

result<index_place> parse_etcd(const std::string& text, std::string_view scheme) {
  const auto slash = std::min(text.find('/', scheme.size()), text.size());
  auto servers
    = HICACHE_TRY(rpc::parse_endpoints(text.substr(scheme.size(), slash - scheme.size())));
  auto prefix = text.substr(std::min(slash + 1, text.size()));
  while (prefix.ends_with('/'))
    prefix.pop_back();
  const auto is_path = std::ranges::any_of(servers, &rpc::endpoint::is_path);
  if (is_path || prefix.empty() || prefix.starts_with('/') || prefix.size() > prefix_bytes)
    return fail(ec::invalid_argument,
                "'" + text + "' names no keys of etcd such as etcd://10.0.0.1:2379/hicache");
  return etcd_place{std::move(servers), std::move(prefix), scheme == etcds_scheme};
}

} // namespace

result<index_place> parse_index_place(const std::string& text) {
  if (text.starts_with(srv_scheme))
    return parse_srv(text);
  for (const auto scheme : {etcd_scheme, etcds_scheme})
    if (text.starts_with(scheme))
      return parse_etcd(text, scheme);
  auto listed = HICACHE_TRY(rpc::parse_endpoints(text));
  return listed_place{std::move(listed)};
}

} // namespace hicache
