#include "cache/store/copy_plan.hpp"

#include "base/limits.hpp"
#include "base/mix.hpp"
#include "messages/object_place.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <unordered_map>
#include <utility>

namespace hicache {

namespace {

using members_by_id = std::unordered_map<uint64_t, const member_info*>;

/// The members, prepared for a batch.
struct candidates {
  /// Members that can take pages, in the order in which they are asked.
  std::vector<const member_info*> ranked;
  members_by_id by_id;
};

members_by_id index_of(std::span<const member_info> members) {
  auto by_id = members_by_id{};
  for (const auto& member : members)
    by_id.emplace(member.member, &member);
  return by_id;
}

candidates rank(std::span<const member_info> members, const copy_source& source, uint64_t seed) {
  auto found = candidates{{}, index_of(members)};
  auto order = std::vector<std::pair<uint64_t, const member_info*>>{};
  for (const auto& member : members)
    if (member.member != source.member && takes_pages(member))
      order.emplace_back(mix(seed, member.member), &member);
  const auto is_elsewhere = [&](const auto& x) { return x.second->host != source.host; };
  if (!source.stays && std::ranges::any_of(order, is_elsewhere))
    std::erase_if(order, std::not_fn(is_elsewhere));
  std::ranges::sort(order, std::greater{}, [](const auto& x) {
    return std::pair{x.first, x.second->member};
  });
  for (const auto& entry : order)
    found.ranked.push_back(entry.second);
  return found;
}

/// The members that count as holders of a page.
std::vector<uint64_t> counted(const wanted_copies& page, const copy_source& source) {
  auto all = page.confirmed;
  if (!page.is_pinned)
    std::ranges::copy_if(page.holders, std::back_inserter(all),
                         [&](uint64_t x) { return x != source.member; });
  return all;
}

/// The hosts with copies that count.
std::set<std::string> hosts_of(std::span<const uint64_t> holders, const members_by_id& members,
                               const copy_source& source) {
  auto hosts = std::set<std::string>{};
  if (source.stays)
    hosts.insert(source.host);
  for (const auto id : holders)
    if (const auto at = members.find(id); at != members.end())
      hosts.insert(at->second->host);
  return hosts;
}

/// The members to ask for one page.
std::vector<uint64_t> targets_of(const wanted_copies& page, const candidates& members,
                                 const copy_source& source) {
  if (page.refused.size() >= limits::copy_targets)
    return {};
  const auto there = counted(page, source);
  auto hosts = hosts_of(there, members.by_id, source);
  auto targets = std::vector<uint64_t>{};
  const auto consider = [&](const member_info& member) {
    const auto is_wanted = hosts.size() < page.copies
                           && std::ranges::count(there, member.member) == 0
                           && std::ranges::count(page.refused, member.member) == 0;
    if (is_wanted && hosts.insert(member.host).second)
      targets.push_back(member.member);
  };
  const auto is_holder
    = [&](const member_info* x) { return std::ranges::count(page.holders, x->member) > 0; };
  for (const auto* member : members.ranked)
    if (hosts.size() < page.copies && is_holder(member))
      consider(*member);
  for (const auto* member : members.ranked)
    consider(*member);
  return targets;
}

} // namespace

std::map<uint64_t, std::vector<size_t>> plan_copies(std::span<const wanted_copies> pages,
                                                    std::span<const member_info> members,
                                                    const copy_source& source) {
  auto plan = std::map<uint64_t, std::vector<size_t>>{};
  if (pages.empty())
    return plan;
  const auto known = rank(members, source, first_word(pages.front().key));
  for (auto i = size_t{0}; i < pages.size(); ++i)
    for (const auto target : targets_of(pages[i], known, source))
      plan[target].push_back(i);
  return plan;
}

std::vector<size_t> lacking_copies(std::span<const wanted_copies> pages,
                                   std::span<const member_info> members,
                                   const copy_source& source) {
  const auto by_id = index_of(members);
  const auto is_lacking = [&](const wanted_copies& page) {
    const auto there = counted(page, source);
    return source.stays ? hosts_of(there, by_id, source).size() < page.copies : there.empty();
  };
  auto positions = std::vector<size_t>{};
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (is_lacking(pages[i]))
      positions.push_back(i);
  return positions;
}

duration pause_after(uint64_t bytes, uint64_t bytes_per_second) noexcept {
  const auto seconds = std::chrono::duration<double>{static_cast<double>(bytes)
                                                     / static_cast<double>(bytes_per_second)};
  return std::chrono::duration_cast<duration>(seconds);
}

} // namespace hicache
