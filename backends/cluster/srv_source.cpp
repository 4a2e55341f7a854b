#include "backends/cluster/srv_source.hpp"

#include "backends/cluster/dns_client.hpp"
#include "base/try.hpp"

#include <algorithm>

namespace hicache {

result<address_answer> srv_source::ask(const std::string&, interruption& stop) {
  const auto whom = dns_options{place_.server, false};
  const auto services = HICACHE_TRY(ask_services(whom, place_.name, stop));
  if (services.targets.empty())
    return address_answer{{}, {}, "the DNS knows no SRV record of that name"};
  auto names = std::vector<std::string>{};
  for (const auto& target : services.targets)
    names.push_back(target.host);
  // Resolved here, because a name server given by the user should resolve hosts, too.
  const auto hosts = ask_hosts(whom, names, stop);
  auto answer = address_answer{};
  auto ttl_s = services.ttl_s;
  auto why = error{};
  for (auto i = size_t{0}; i < hosts.size(); ++i) {
    if (!hosts[i]) {
      why = hosts[i].error();
      ttl_s = 0; // Query again soon.
      continue;
    }
    ttl_s = std::min(ttl_s, hosts[i]->ttl_s);
    for (const auto& number : hosts[i]->numbers)
      answer.addresses.push_back(to_string(rpc::endpoint{number, services.targets[i].port}));
  }
  if (answer.addresses.empty() && why.code != ec::none)
    return tl::unexpected{why};
  if (answer.addresses.empty())
    answer.trouble = "none of the hosts that its SRV record names has an address";
  std::ranges::sort(answer.addresses);
  answer.addresses.resize(std::min(answer.addresses.size(), source_addresses));
  answer.valid = std::chrono::seconds{ttl_s};
  return answer;
}

} // namespace hicache
