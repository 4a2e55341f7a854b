// What is said in the simulated cluster, and what becomes of it.

#include "base/limits.hpp"
#include "bench/index_world.hpp"

#include <algorithm>

namespace hicache::bench {

namespace {

using namespace std::chrono_literals;

/// What members grant a shard (launch/cluster_member.cpp), and readers.
constexpr auto member_patience = duration{5s};
constexpr auto reader_patience = duration{limits::storage_timeout};

} // namespace

// -- messages -----------------------------------------------------------------

uint32_t index_world::take_message() {
  if (free_messages_.empty()) {
    messages_.emplace_back();
    return static_cast<uint32_t>(messages_.size() - 1);
  }
  const auto i = free_messages_.back();
  free_messages_.pop_back();
  return i;
}

void index_world::give_back(uint32_t i) {
  pending_ -= messages_[i].kind == message_kind::beat ? 0 : 1;
  messages_[i] = {};
  free_messages_.push_back(i);
}

void index_world::send(uint32_t m, uint32_t s, message_kind kind, std::vector<uint64_t> pages) {
  auto& who = members_[m];
  last_sent_ = take_message();
  auto& x = messages_[last_sent_];
  const auto of_reader = kind == message_kind::locate;
  x = {};
  x.kind = kind;
  x.member = x.owner = m;
  x.shard = s;
  x.life = of_reader ? who.links[s] : who.mounts[s].life;
  x.pages = std::move(pages);
  x.sent = now_;
  x.epoch = of_reader ? 0 : who.mounts[s].epoch;
  pending_ += kind == message_kind::beat ? 0 : 1;
  if (who.fate == member_fate::alive)
    at(now_ + hop, event_kind::arrive, last_sent_);
  else
    at(now_ + member_patience, event_kind::fail, last_sent_);
}

void index_world::arrive(uint32_t i) {
  auto& x = messages_[i];
  auto& shard = shards_[x.shard];
  if (!shard.is_up || shard.life != x.life) {
    at(now_ + hop, event_kind::fail, i);
    return;
  }
  const auto begin = shard.begin(now_);
  if (x.kind == message_kind::locate) {
    const auto wait = begin - now_;
    ++seen_.lookups;
    seen_.late += wait > 10ms ? 1 : 0;
    seen_.longest_wait = std::max(seen_.longest_wait, wait);
  }
  const auto done = shard.occupy(now_, handle(x, begin));
  const auto patience = x.kind == message_kind::locate ? reader_patience : member_patience;
  if (done + hop > x.sent + patience)
    at(std::max(now_, x.sent + patience), event_kind::fail, i);
  else
    at(done + hop, event_kind::answer, i);
}

duration index_world::handle(message& x, time_point begin) {
  auto& shard = shards_[x.shard];
  const auto& who = members_[x.member];
  const auto count = static_cast<int64_t>(x.pages.size());
  const auto take = [&](const membership& view) {
    x.known = view.known;
    x.shards_known = view.shards_digest;
  };
  switch (x.kind) {
    case message_kind::mount: {
      auto info = who.info;
      info.epoch = x.epoch;
      take(shard.mount(info, begin));
      return cost::message + reap_some(x.shard);
    }
    case message_kind::beat:
      take(shard.beat({who.info.member, x.epoch, {}}, begin));
      return cost::message;
    case message_kind::publish:
    case message_kind::report: {
      auto news = published_pages{who.info.member, x.epoch, {}};
      const auto is_first = [&](uint64_t page) { return who.pages.keepers(page)[0] == x.shard; };
      const auto seconds = std::ranges::stable_partition(x.pages, is_first);
      news.seconds = static_cast<uint32_t>(seconds.size());
      for (const auto page : x.pages)
        news.pages.push_back(who.pages.announced(page));
      take(shard.publish(x.kind, news));
      return cost::message + count * cost::published_page;
    }
    case message_kind::withdraw: {
      auto news = withdrawn_pages{who.info.member, x.epoch, {}};
      for (const auto page : x.pages)
        news.keys.push_back(who.pages.announced(page).key);
      take(shard.withdraw(news));
      return cost::message + count * cost::withdrawn_page;
    }
    case message_kind::locate:
      locate(shard, x, begin);
      return cost::message + count * cost::located_key;
  }
  return {};
}

void index_world::locate(simulated_shard& at, message& x, time_point now) {
  const auto& owner = members_[x.owner];
  auto query = key_batch{};
  for (const auto page : x.pages)
    query.keys.push_back(owner.pages.announced(page).key);
  const auto found = at.locate(query, now);
  x.shards_known = found.shards_digest;
  const auto is_there = owner.fate == member_fate::alive;
  for (auto i = size_t{0}; i < x.pages.size(); ++i) {
    const auto& copies = found.replicas[i];
    if (copies.empty()) {
      if (found.is_partial)
        x.doubtful.push_back(x.pages[i]);
      else
        count_misses(x.owner, 1);
      continue;
    }
    const auto page = owner.pages.announced(x.pages[i]);
    const auto right = replica{owner.info.member, page.offset, page.generation, page.length};
    seen_.wrong += copies.size() == 1 && copies[0] == right ? 0 : 1;
    seen_.stale += is_there ? 0 : 1;
  }
}

void index_world::answer(uint32_t i) {
  auto& x = messages_[i];
  auto& who = members_[x.member];
  if (shards_[x.shard].life != x.life || !shards_[x.shard].is_up)
    return fail(i);
  if (who.fate == member_fate::cut_off) {
    at(std::max(now_, x.sent + member_patience), event_kind::fail, i);
    return;
  }
  if (who.fate == member_fate::alive) {
    heard(x.member, x.shards_known);
    if (!x.doubtful.empty())
      ask_other(x, x.doubtful);
    auto& here = who.mounts[std::min<size_t>(x.shard, who.mounts.size() - 1)];
    const auto is_same = here.life != 0 && here.epoch == x.epoch;
    const auto is_report = x.kind == message_kind::mount || x.kind == message_kind::report;
    if (is_report && is_same)
      report(x.member, x.shard);
    else if (!is_report && x.kind != message_kind::locate && !x.known && here.life != 0
             && !here.is_reporting && who.links[x.shard] != 0)
      mount(x.member, x.shard);
  }
  give_back(i);
}

void index_world::fail(uint32_t i) {
  const auto& x = messages_[i];
  auto& who = members_[x.member];
  if (who.fate != member_fate::dead) {
    ++seen_.failed;
    if (who.links[x.shard] == x.life)
      lose_link(x.member, x.shard);
    if (x.kind == message_kind::locate)
      ask_other(x, x.pages);
    else if (who.mounts[x.shard].life == x.life)
      lose_mount(x.member, x.shard);
  }
  give_back(i);
}

} // namespace hicache::bench
