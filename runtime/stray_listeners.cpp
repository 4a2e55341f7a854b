#include "runtime/stray_listeners.hpp"

#include "rpc/endpoint.hpp"
#include "runtime/network_flags.hpp"
#include "transport/own_listeners.hpp"

#include <spdlog/spdlog.h>

#include <netdb.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <set>

namespace hicache {

namespace {

/// The numeric addresses of a host.
std::vector<std::string> numbers_of(const std::string& host) {
  auto hints = addrinfo{};
  hints.ai_socktype = SOCK_STREAM;
  auto* list = static_cast<addrinfo*>(nullptr);
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0)
    return {};
  const auto guard = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>{list, ::freeaddrinfo};
  auto numbers = std::vector<std::string>{};
  for (const auto* each = list; each != nullptr; each = each->ai_next) {
    auto text = std::array<char, NI_MAXHOST>{};
    if (::getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST)
        == 0)
      numbers.emplace_back(text.data());
  }
  return numbers;
}

} // namespace

std::vector<std::string> stray_listeners(const std::vector<std::string>& addresses,
                                         const std::vector<std::string>& hosts) {
  auto allowed = std::set<std::string>{};
  for (const auto& host : hosts)
    for (auto& number : numbers_of(host))
      allowed.insert(std::move(number));
  if (allowed.contains("0.0.0.0") || allowed.contains("::"))
    return {};
  auto stray = std::vector<std::string>{};
  std::ranges::copy_if(addresses, std::back_inserter(stray), [&](const std::string& address) {
    const auto where = rpc::parse_endpoint(address);
    return where && !is_loopback(where->host) && !allowed.contains(where->host);
  });
  return stray;
}

void warn_of_stray_listeners(const std::vector<std::string>& before, const std::string& host,
                             const std::string& library) {
  auto opened = std::vector<std::string>{};
  std::ranges::set_difference(listening_addresses(), before, std::back_inserter(opened));
  for (const auto& address : stray_listeners(opened, {host}))
    spdlog::warn("other machines reach this process on {}, although no setting asks for it; it was "
                 "opened by {}",
                 address, library);
}

} // namespace hicache
