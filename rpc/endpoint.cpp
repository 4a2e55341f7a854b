#include "rpc/endpoint.hpp"

#include "base/numbers.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <string_view>

namespace hicache::rpc {

result<endpoint> parse_endpoint(const std::string& text) {
  // Fits the path of a socket address.
  constexpr auto path_max = size_t{100};
  auto where = endpoint{};
  if (text.starts_with("unix:") && text.size() > 5 && text.size() <= path_max)
    return endpoint{text, 0};
  const auto colon = text.rfind(':');
  if (colon != std::string::npos && colon > 0 && !text.starts_with("unix:")) {
    where.host = text.substr(0, colon);
    if (where.host.size() > 2 && where.host.front() == '[' && where.host.back() == ']')
      where.host = where.host.substr(1, where.host.size() - 2);
    if (const auto port = parse_number<uint16_t>(std::string_view{text}.substr(colon + 1))) {
      where.port = *port;
      return where;
    }
  }
  return fail(ec::invalid_argument,
              "'" + text + "' is not an address such as 127.0.0.1:7000 or unix:/run/hicache");
}

std::string to_string(const endpoint& where) {
  if (where.is_path())
    return where.host;
  const auto host = where.host.find(':') == std::string::npos ? where.host : "[" + where.host + "]";
  return host + ":" + std::to_string(where.port);
}

result<std::vector<endpoint>> parse_endpoints(const std::string& text) {
  auto all = std::vector<endpoint>{};
  for (auto begin = size_t{0}; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    all.emplace_back() = HICACHE_TRY(parse_endpoint(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return all;
}

} // namespace hicache::rpc
