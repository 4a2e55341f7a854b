#include "actors/directory.hpp"

#include "base/check.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

shard_map directory_state::exchange(const shard_map& news) {
  if (merge(map, news))
    after_change();
  for (const auto& shard : news.shards)
    look_at(shard);
  return map;
}

caf::result<caf::strong_actor_ptr> directory_state::locate(uint32_t number) const {
  const auto at = options.shards.find(number);
  if (at == options.shards.end())
    return to_caf({ec::not_found, "shard " + std::to_string(number) + " is not in this process"});
  return caf::actor_cast<caf::strong_actor_ptr>(at->second);
}

void directory_state::start(const std::string& where) {
  if (!address.empty())
    return;
  address = where;
  others.erase(where);
  look_around();
  for (const auto& [other, directory] : others)
    unheard.insert(other);
  settle({}, nullptr);
  poll();
}

void directory_state::poll() {
  look_around();
  for (const auto& [where, directory] : others)
    ask(where);
  self->delayed_send(self, options.pause, atom::poll_v);
}

// -- internal steps -----------------------------------------------------------

void directory_state::look_around() {
  auto wanted = std::set<std::string>{};
  if (options.others)
    for (auto& where : options.others())
      if (where != address)
        wanted.insert(std::move(where));
  for (const auto& where : wanted)
    others.try_emplace(where);
  for (const auto& shard : map.shards)
    wanted.insert(shard.address);
  std::erase_if(others, [&](const auto& other) {
    const auto& where = other.first;
    return !wanted.contains(where) && !contenders.contains(where) && !unheard.contains(where);
  });
}

void directory_state::claim(uint32_t number) {
  const auto known = std::ranges::find(map.shards, number, &index_shard::number);
  claims[number] = known == map.shards.end() ? 1 : known->epoch + 1;
  exchange({{{number, address, claims[number]}}});
}

void directory_state::look_at(const index_shard& claimed) {
  const auto own = claims.find(claimed.number);
  if (own == claims.end() || superseded.contains(claimed.number) || claimed.epoch < own->second)
    return;
  if (claimed.address.empty()) {
    superseded.insert(claimed.number);
    spdlog::error("shard {} is given up: this process is not asked any more", claimed.number);
  } else if (claimed.address != address) {
    others.try_emplace(claimed.address);
    if (contenders[claimed.address].insert(claimed.number).second)
      ask(claimed.address);
  } else if (claimed.epoch > own->second) {
    claim(claimed.number); // The claim of an earlier process at this address.
  }
}

void directory_state::settle(const std::string& where, const shard_map* news) {
  unheard.erase(where);
  const auto before = claims;
  if (unheard.empty() && claims.empty())
    for (const auto& [number, shard] : options.shards)
      claim(number);
  if (const auto contested = contenders.extract(where))
    for (const auto number : contested.mapped()) {
      const auto at = std::ranges::find(map.shards, number, &index_shard::number);
      if (news == nullptr) {
        claim(number);
      } else if (at->address == where) {
        superseded.insert(number);
        spdlog::error("shard {} is at {} now: this process is not asked any more", number, where);
      }
    }
  if (claims != before)
    for (const auto& [other, directory] : others)
      if (directory)
        tell(other);
}

void directory_state::ask(const std::string& where) {
  if (others[where])
    tell(where);
  else
    connect(where);
}

void directory_state::connect(const std::string& where) {
  auto on_directory = [this, where](const caf::strong_actor_ptr& found) {
    others[where] = caf::actor_cast<directory_actor>(found);
    tell(where);
  };
  auto on_error = [this, where](const caf::error& err) {
    spdlog::debug("no index at {}: {}", where, to_string(from_caf(err)));
    settle(where, nullptr);
  };
  self->request(options.connector, options.pause, atom::connect_v, where)
    .then(on_directory, on_error);
}

void directory_state::tell(const std::string& where) {
  auto on_map = [this, where](const shard_map& news) {
    exchange(news);
    settle(where, &news);
  };
  auto on_error = [this, where](const caf::error& err) {
    spdlog::warn("the index at {} does not answer: {}", where, to_string(from_caf(err)));
    others[where] = nullptr;
    settle(where, nullptr);
  };
  self->request(others[where], options.pause, atom::shards_v, map).then(on_map, on_error);
}

void directory_state::after_change() {
  for (const auto& shard : map.shards)
    if (!shard.address.empty() && shard.address != address)
      others.try_emplace(shard.address);
  for (const auto& [number, shard] : options.shards)
    self->send(shard, atom::shards_v, digest_of(map));
}

// -- actor --------------------------------------------------------------------

directory_actor::behavior_type directory(directory_actor::stateful_pointer<directory_state> self,
                                         directory_options options) {
  HICACHE_CHECK(!options.shards.empty() && options.connector);
  auto& state = self->state;
  state.options = std::move(options);
  // By default an error message terminates an actor; peers send one if they do not understand a
  // reply.
  self->set_error_handler(
    [](const caf::error& err) { spdlog::warn("a peer complains: {}", to_string(from_caf(err))); });
  return {
    [self](atom::shards, const shard_map& news) { return self->state.exchange(news); },
    [self](atom::locate, uint32_t number) { return self->state.locate(number); },
    [self](atom::start, const std::string& where) { self->state.start(where); },
    [self](atom::poll) { self->state.poll(); },
  };
}

} // namespace hicache
