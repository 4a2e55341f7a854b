// Readers of the simulated cluster: lookups, and queries for the members in their answers.

#include "base/limits.hpp"
#include "bench/index_world.hpp"

#include <algorithm>

namespace hicache::bench {

namespace {

constexpr auto batch = uint64_t{limits::storage_batch_pages};

} // namespace

// -- lookups ------------------------------------------------------------------

void index_world::ask(uint32_t m) {
  const auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + every(load_.lookups_per_s), event_kind::ask, m);
  const auto writer = static_cast<uint32_t>(random_() % members_.size());
  const auto& pages = members_[writer].pages;
  // Avoids pages that are evicted during the lookup or have only just been written.
  const auto margin = std::min(8 * batch, pages.slots() / 4);
  const auto room = pages.slots() - 2 * margin - batch;
  const auto first = pages.first() + margin + random_() % (room + 1);
  if (!is_loaded_ || who.fate == member_fate::cut_off)
    return;
  const auto known = first_shards(who.reader_shards);
  auto lists = std::vector<std::vector<page_id>>(who.reader_shards);
  auto out_of_reach = std::vector<page_id>{};
  for (auto page = first; page < first + batch; ++page) {
    const auto keepers = known.keepers_of(pages.key(page));
    if (who.links[keepers.first].life != 0)
      lists[keepers.first].push_back(id_of(writer, page));
    else if (who.links[keepers.second].life != 0)
      lists[keepers.second].push_back(id_of(writer, page));
    else
      out_of_reach.push_back(id_of(writer, page));
  }
  seen_.keys += batch;
  count_misses(out_of_reach);
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    if (!lists[s].empty())
      send(m, s, message_kind::locate, std::move(lists[s]));
}

void index_world::ask_other(const message& x, const std::vector<page_id>& pages) {
  const auto& who = members_[x.member];
  if (x.is_second_look)
    return count_misses(pages);
  const auto known = first_shards(who.reader_shards);
  auto lists = std::vector<std::vector<page_id>>(who.reader_shards);
  for (const auto id : pages) {
    const auto keepers = known.keepers_of(members_[writer_of(id)].pages.key(number_of(id)));
    lists[keepers.first == x.shard ? keepers.second : keepers.first].push_back(id);
  }
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    if (who.links[s].life == 0) {
      count_misses(lists[s]);
    } else if (!lists[s].empty()) {
      seen_.asked_twice += lists[s].size();
      send(x.member, s, message_kind::locate, std::move(lists[s])).is_second_look = true;
    }
}

void index_world::count_misses(const std::vector<page_id>& pages) {
  for (const auto id : pages)
    seen_.misses += holders(id) > 0 ? 1 : 0;
}

// -- members by id ------------------------------------------------------------

std::optional<uint32_t> index_world::next_shard(uint32_t m, uint32_t& tried) const {
  const auto& links = members_[m].links;
  for (; tried < links.size(); ++tried)
    if (const auto shard = (m + tried) % static_cast<uint32_t>(links.size());
        links[shard].life != 0)
      return shard;
  return std::nullopt;
}

void index_world::find_routes(uint32_t m, const std::set<uint64_t>& offered) {
  auto& routes = members_[m].routes;
  for (const auto id : offered) {
    routes.offered[id - 1] = true;
    if (!routes.known[id - 1])
      routes.wanted.insert(id);
  }
  if (!routes.wanted.empty() && !routes.is_asking)
    ask_routes(m);
}

void index_world::ask_routes(uint32_t m) {
  auto& routes = members_[m].routes;
  routes.is_asking = true;
  routes.needed = std::exchange(routes.wanted, {});
  auto ids = routes.needed;
  if (now_ >= routes.looked_after) {
    routes.looked_after = now_ + limits::member_list_memory;
    for (auto i = size_t{0}; i < routes.known.size(); ++i)
      if (routes.known[i])
        ids.insert(i + 1);
  }
  routes.ids.assign(ids.begin(), ids.end());
  routes.found.clear();
  routes.has_answer = false;
  routes.tried = 0;
  routes.begin = 0;
  ask_part(m);
}

void index_world::ask_part(uint32_t m) {
  auto& who = members_[m];
  auto& routes = who.routes;
  const auto shard = next_shard(m, routes.tried);
  if (!shard)
    return end_routes(m);
  const auto first = routes.ids.begin() + static_cast<ptrdiff_t>(routes.begin);
  const auto count = std::min<size_t>(limits::members_listed, routes.ids.size() - routes.begin);
  send(m, *shard, message_kind::list).query.members
    = {first, first + static_cast<ptrdiff_t>(count)};
}

void index_world::heard_routes(message& x, bool failed) {
  auto& routes = members_[x.member].routes;
  routes.begin += x.query.members.size();
  for (const auto& info : x.listed.members)
    if (!failed)
      routes.found.insert(info.member);
  if (!failed && routes.begin < routes.ids.size())
    return ask_part(x.member);
  routes.has_answer = routes.has_answer || !failed;
  // A shard that has just started does not know all members.
  if (!failed && std::ranges::includes(routes.found, routes.needed))
    return end_routes(x.member);
  ++routes.tried;
  routes.begin = 0;
  ask_part(x.member);
}

void index_world::end_routes(uint32_t m) {
  auto& routes = members_[m].routes;
  routes.is_asking = false;
  if (routes.has_answer)
    for (const auto id : routes.ids) {
      const auto is_found = routes.found.contains(id);
      const auto was_known = routes.known[id - 1];
      routes.known[id - 1] = is_found;
      if (is_found)
        continue;
      routes.offered[id - 1] = false;
      seen_.forgotten += was_known && members_[id - 1].fate == member_fate::alive ? 1 : 0;
    }
  std::erase_if(routes.wanted, [&routes](uint64_t id) { return routes.known[id - 1]; });
  if (!routes.wanted.empty())
    ask_routes(m);
}

// -- all members --------------------------------------------------------------

void index_world::place(uint32_t m) {
  const auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + limits::member_list_memory, event_kind::place, m);
  if (is_loaded_)
    list_members(m, purpose::placing);
}

simulated_listing& index_world::listing(uint32_t m, purpose why) {
  auto& who = members_[m];
  return why == purpose::placing ? who.listing : who.spread.listing;
}

void index_world::list_members(uint32_t m, purpose why) {
  auto& list = listing(m, why);
  if (list.is_open)
    return;
  list = {true, 0, {}};
  ask_list(m, why, 0);
}

void index_world::ask_list(uint32_t m, purpose why, uint64_t from) {
  auto& list = listing(m, why);
  if (const auto shard = next_shard(m, list.tried)) {
    auto& question = send(m, *shard, message_kind::list);
    question.why = why;
    question.query = {{}, from, limits::members_listed};
    return;
  }
  list.is_open = false;
  if (why == purpose::repairing)
    next_batch(m);
}

void index_world::heard_list(message& x, bool failed) {
  auto& list = listing(x.member, x.why);
  auto& members = list.members;
  members.insert(members.end(), x.listed.members.begin(), x.listed.members.end());
  if (failed && x.why == purpose::placing) { // Another shard may answer.
    members.clear();
    ++list.tried;
    return ask_list(x.member, x.why, 0);
  }
  if (!failed && x.listed.has_more)
    return ask_list(x.member, x.why, members.back().member + 1);
  list.is_open = false;
  if (x.why == purpose::repairing)
    next_batch(x.member);
}

std::vector<uint32_t> index_world::list_all() {
  constexpr auto most = size_t{32};
  auto living = std::vector<uint32_t>{};
  for (auto m = uint32_t{0}; m < members_.size(); ++m)
    if (members_[m].fate == member_fate::alive)
      living.push_back(m);
  auto all = std::set<uint64_t>{};
  for (const auto m : living)
    all.insert(members_[m].info.member);
  auto asked = std::vector<uint32_t>{};
  std::ranges::sample(living, std::back_inserter(asked), most, random_);
  for (const auto m : asked) {
    list_members(m, purpose::placing);
    auto& routes = members_[m].routes;
    routes.wanted = all;
    routes.looked_after = now_;
    ask_routes(m);
  }
  return asked;
}

} // namespace hicache::bench
