#include "backends/cluster/member_lists.hpp"

#include "backends/ask.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <iterator>

namespace hicache {

result<std::vector<member_info>> list_members(caf::actor_system& system, const index_actor& shard,
                                              const clock_source& clock, time_point deadline) {
  auto all = std::vector<member_info>{};
  auto from = uint64_t{0};
  for (;;) {
    auto some
      = HICACHE_TRY(ask<member_list>(system, shard, time_left(clock, deadline), atom::members_v,
                                     member_query{{}, from, limits::members_listed}));
    std::ranges::move(some.members, std::back_inserter(all));
    if (!some.has_more || all.empty())
      return all;
    from = all.back().member + 1;
  }
}

result<std::vector<member_info>> list_members(caf::actor_system& system, const index_actor& shard,
                                              std::span<const uint64_t> ids,
                                              const clock_source& clock, time_point deadline) {
  auto all = std::vector<member_info>{};
  for (auto first = size_t{0}; first < ids.size(); first += limits::members_listed) {
    const auto part
      = ids.subspan(first, std::min<size_t>(limits::members_listed, ids.size() - first));
    auto some
      = HICACHE_TRY(ask<member_list>(system, shard, time_left(clock, deadline), atom::members_v,
                                     member_query{{part.begin(), part.end()}}));
    std::ranges::move(some.members, std::back_inserter(all));
  }
  return all;
}

result<index_status> ask_status(caf::actor_system& system, const index_actor& shard,
                                const clock_source& clock, time_point deadline) {
  const auto part = [&](uint64_t from) {
    return ask<index_status>(system, shard, time_left(clock, deadline), atom::status_v,
                             status_query{from, limits::members_listed});
  };
  auto all = HICACHE_TRY(part(0));
  for (auto has_more = all.has_more; has_more && !all.members.empty();) {
    auto some = HICACHE_TRY(part(all.members.back().info.member + 1));
    std::ranges::move(some.members, std::back_inserter(all.members));
    has_more = some.has_more;
  }
  return all;
}

} // namespace hicache
