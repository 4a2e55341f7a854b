#include "backends/cluster/index_lookup.hpp"

#include "backends/ask.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hicache {

index_lookup::index_lookup(caf::actor_system& system, index_link& index, const clock_source& clock)
  : system_(system), index_(index), clock_(clock) {}

lookup_answer index_lookup::locate(std::span<const page_key> keys, time_point deadline) {
  auto all = lookup_answer{};
  all.where.replicas.resize(keys.size());
  const auto view = index_.view();
  if (view->numbers.empty() || clock_.now() >= deadline) {
    all.unanswered.resize(keys.size());
    std::iota(all.unanswered.begin(), all.unanswered.end(), size_t{0});
    return all;
  }
  const auto count = view->numbers.size();
  auto slow = std::vector<bool>(count);
  for (auto i = size_t{0}; i < count; ++i)
    slow[i] = count > 1 && is_slow(view->shards[i]);
  const auto is_reached
    = [&view](size_t i) { return i != key_keepers::none && view->shards[i] != nullptr; };
  auto lists = shard_lists(count);
  auto hedged = std::vector<bool>(count);
  auto others = std::vector<size_t>(keys.size(), key_keepers::none);
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    auto [now, later] = view->keepers_of(keys[i]);
    if (is_reached(later) && (!is_reached(now) || (slow[now] && !slow[later])))
      std::swap(now, later);
    if (!is_reached(now)) {
      all.unanswered.push_back(i);
      continue;
    }
    lists[now].push_back(i);
    if (is_reached(later)) {
      others[i] = later;
      hedged[now] = true;
    }
  }
  const auto first = ask(*view, keys, lists, hedged, deadline, all.where);
  auto again = shard_lists(count);
  const auto ask_other = [&](size_t i) {
    if (others[i] != key_keepers::none)
      again[others[i]].push_back(i);
    return others[i] != key_keepers::none;
  };
  for (const auto i : first.doubtful)
    ask_other(i); // If the other keeper does not know the page either, it is a miss.
  for (const auto i : first.failed)
    if (!ask_other(i))
      all.unanswered.push_back(i);
  const auto second = ask(*view, keys, again, std::vector<bool>(count), deadline, all.where);
  for (const auto i : second.failed)
    if (std::ranges::find(first.failed, i) != first.failed.end())
      all.unanswered.push_back(i);
  return all;
}

bool index_lookup::await_more(std::span<const page_key> keys, std::span<const replica_list> known,
                              time_point deadline) {
  const auto view = index_.view();
  if (keys.empty() || view->numbers.empty() || clock_.now() >= deadline)
    return false;
  const auto keeper = view->keepers_of(keys.front()).first;
  if (!view->shards[keeper])
    return false;
  const auto left = time_left(clock_, deadline);
  auto wanted = awaited_pages{};
  for (auto i = size_t{0}; i < keys.size() && wanted.keys.size() < limits::index_batch_keys; ++i)
    if (view->keepers_of(keys[i]).first == keeper) {
      wanted.keys.push_back(keys[i]);
      wanted.known.push_back(static_cast<uint8_t>(count_in_memory(known[i])));
    }
  wanted.wait_ms
    = static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  return hicache::ask<atom::ok>(system_, view->shards[keeper], left, atom::await_v,
                                std::move(wanted))
    .has_value();
}

index_lookup::outcome index_lookup::ask(const index_view& view, std::span<const page_key> keys,
                                        const shard_lists& lists, const std::vector<bool>& hedged,
                                        time_point deadline, placements& where) {
  auto made = outcome{};
  if (std::ranges::all_of(lists, &std::vector<size_t>::empty))
    return made;
  auto asker = askers_.take();
  if (!asker)
    asker = std::make_unique<caf::scoped_actor>(system_, true);
  auto& self = *asker;
  const auto left = time_left(clock_, deadline);
  const auto asked = std::chrono::steady_clock::now();
  const auto send = [&](size_t shard, std::span<const size_t> part) {
    auto batch = key_batch{{}, true};
    batch.keys.reserve(part.size());
    for (const auto at : part)
      batch.keys.push_back(keys[at]);
    return self->request(view.shards[shard], caf::infinite, atom::locate_v, std::move(batch));
  };
  struct question {
    size_t shard = 0;
    caf::timespan granted;
    std::span<const size_t> part;
    decltype(send({}, {})) answer;
  };
  // Send all requests first, so that the shards work in parallel.
  auto questions = std::vector<question>{};
  for (auto shard = size_t{0}; shard < lists.size(); ++shard) {
    const auto granted
      = hedged[shard] ? std::min<caf::timespan>(left / 2, limits::lookup_hedge) : left;
    const auto list = std::span{lists[shard]};
    for (auto begin = size_t{0}; begin < list.size(); begin += limits::index_batch_keys) {
      const auto part
        = list.subspan(begin, std::min(limits::index_batch_keys, list.size() - begin));
      questions.push_back({shard, granted, part, send(shard, part)});
    }
  }
  for (auto& [shard, granted, part, answer] : questions) {
    const auto& to = view.shards[shard];
    const auto on_answer = [&, part = part](placements& found) {
      if (found.replicas.size() != part.size()) {
        index_.lost(to);
        made.failed.insert(made.failed.end(), part.begin(), part.end());
        return;
      }
      index_.heard(found.shards_digest);
      for (auto i = size_t{0}; i < part.size(); ++i) {
        if (found.is_partial && found.replicas[i].empty())
          made.doubtful.push_back(part[i]);
        where.replicas[part[i]] = std::move(found.replicas[i]);
      }
    };
    const auto on_error = [&, part = part, granted = granted](const caf::error& err) {
      failed(to, err, granted);
      made.failed.insert(made.failed.end(), part.begin(), part.end());
    };
    const auto waited = std::chrono::steady_clock::now() - asked;
    receive_within(self, answer, std::max(granted - waited, caf::timespan{0}), on_answer, on_error);
  }
  if (made.failed.empty()) // Otherwise a late answer may still arrive.
    askers_.give_back(std::move(asker));
  return made;
}

bool index_lookup::is_slow(const index_actor& shard) {
  const auto guard = std::lock_guard{mutex_};
  if (!shard || slow_.empty())
    return false;
  const auto at = slow_.find(shard.address());
  return at != slow_.end() && clock_.now() < at->second;
}

void index_lookup::failed(const index_actor& shard, const caf::error& why, caf::timespan granted) {
  // A timeout of an impatient caller must not make others reconnect, remount and report again.
  if (from_caf(why).code != ec::deadline_exceeded || granted >= limits::shard_answer_time)
    return index_.lost(shard);
  if (granted < limits::lookup_hedge)
    return;
  const auto guard = std::lock_guard{mutex_};
  const auto now = clock_.now();
  std::erase_if(slow_, [now](const auto& x) { return x.second <= now; });
  slow_[shard.address()] = now + limits::slow_shard_pause;
}

} // namespace hicache
