#include "messages/placement.hpp"

#include "base/mix.hpp"
#include "messages/object_place.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace hicache {

std::vector<uint64_t> place_replicas(const page_key& key, std::span<const member_info> members,
                                     const std::string& own_host, size_t count) {
  auto ranked = std::vector<std::pair<uint64_t, const member_info*>>{};
  const auto seed = first_word(key);
  for (const auto& member : members)
    if (member.host != own_host && takes_pages(member))
      ranked.emplace_back(mix(seed, member.member), &member);
  std::ranges::sort(ranked, std::greater{}, [](const auto& x) {
    return std::pair{x.first, x.second->member};
  });
  auto chosen = std::vector<const member_info*>{};
  for (const auto& entry : ranked) {
    const auto* member = entry.second;
    const auto has_host = [member](const auto* other) { return other->host == member->host; };
    if (chosen.size() < count && std::ranges::none_of(chosen, has_host))
      chosen.push_back(member);
  }
  auto ids = std::vector<uint64_t>(chosen.size());
  std::ranges::transform(chosen, ids.begin(), &member_info::member);
  return ids;
}

} // namespace hicache
