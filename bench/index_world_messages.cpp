// Messages of the simulated cluster: sending, delivery, processing and failure.

#include "base/limits.hpp"
#include "bench/index_world.hpp"

#include <algorithm>

namespace hicache::bench {

namespace {

using namespace std::chrono_literals;

/// Request timeouts of members (runtime/cluster_member.cpp) and of readers.
constexpr auto member_patience = duration{5s};
constexpr auto reader_patience = duration{limits::storage_timeout};

/// TCP retransmission timeout.
constexpr auto resend_pause = duration{200ms};

} // namespace

duration index_world::patience_of(const message& x) {
  const auto is_read = x.kind == message_kind::locate || x.kind == message_kind::list;
  return is_read && x.why != purpose::repairing ? reader_patience : member_patience;
}

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

index_world::message& index_world::send(uint32_t m, uint32_t s, message_kind kind,
                                        std::vector<page_id> pages) {
  auto& who = members_[m];
  const auto i = take_message();
  auto& x = messages_[i];
  const auto of_reader = kind == message_kind::locate || kind == message_kind::list;
  x = {};
  x.kind = kind;
  x.member = m;
  x.shard = s;
  x.life = who.links[s].life;
  x.link = who.links[s].number;
  x.pages = std::move(pages);
  x.sent = now_;
  x.epoch = of_reader ? 0 : who.mounts[s].progress.epoch();
  pending_ += kind == message_kind::beat ? 0 : 1;
  at(now_ + hop, event_kind::arrive, i);
  return x;
}

void index_world::send_again(uint32_t i, event_kind what) {
  const auto& x = messages_[i];
  if (now_ + resend_pause > x.sent + patience_of(x))
    at(std::max(now_, x.sent + patience_of(x)), event_kind::fail, i);
  else
    at(now_ + resend_pause, what, i);
}

void index_world::arrive(uint32_t i) {
  auto& x = messages_[i];
  if (members_[x.member].fate == member_fate::cut_off)
    return send_again(i, event_kind::arrive);
  auto& shard = shards_[x.shard];
  if (!shard.is_up || shard.life != x.life) {
    at(now_ + hop, event_kind::fail, i);
    return;
  }
  const auto begin = shard.begin(now_);
  if (x.kind == message_kind::locate && x.why == purpose::reading) {
    const auto wait = begin - now_;
    ++seen_.lookups;
    seen_.late += wait > 10ms ? 1 : 0;
    seen_.longest_wait = std::max(seen_.longest_wait, wait);
  }
  const auto done = shard.occupy(now_, handle(x, begin));
  if (done + hop > x.sent + patience_of(x))
    at(std::max(now_, x.sent + patience_of(x)), event_kind::fail, i);
  else
    at(done + hop, event_kind::answer, i);
}

duration index_world::handle(message& x, time_point begin) {
  auto& shard = shards_[x.shard];
  const auto& who = members_[x.member];
  const auto count = static_cast<int64_t>(x.pages.size());
  const auto take = [&](membership view) {
    x.known = view.known;
    x.resumed = view.resumed;
    x.shards_known = view.shards_digest;
    x.lost = std::move(view.lost);
  };
  switch (x.kind) {
    case message_kind::mount: {
      auto info = who.info;
      info.epoch = x.epoch;
      info.resumes = x.resumes;
      take(shard.mount(info, x.link, begin));
      return cost::message + expire_some_replicas(x.shard);
    }
    case message_kind::beat:
      take(shard.beat({who.info.member, x.epoch, {}}, begin));
      return cost::message;
    case message_kind::publish:
    case message_kind::report: {
      auto news = published_pages{who.info.member, x.epoch, {}};
      const auto is_first = [&](page_id id) { return keepers(id)[0] == x.shard; };
      const auto seconds = std::ranges::stable_partition(x.pages, is_first);
      news.seconds = static_cast<uint32_t>(seconds.size());
      for (const auto id : x.pages)
        news.pages.push_back(*announced(x.member, id));
      take(shard.publish(x.kind, news, begin));
      return cost::message + count * cost::published_page;
    }
    case message_kind::withdraw: {
      auto news = withdrawn_pages{who.info.member, x.epoch, {}};
      for (const auto id : x.pages)
        news.keys.push_back(members_[writer_of(id)].pages.key(number_of(id)));
      take(shard.withdraw(news));
      return cost::message + count * cost::withdrawn_page;
    }
    case message_kind::locate:
      locate(shard, x, begin);
      return cost::message + count * cost::located_key;
    case message_kind::list: {
      x.listed = shard.list(x.query);
      const auto length = std::max(x.listed.members.size(), x.query.members.size());
      ++seen_.lists;
      seen_.longest_list = std::max<uint64_t>(seen_.longest_list, length);
      return cost::message + static_cast<int64_t>(length) * cost::listed_member;
    }
  }
  return {};
}

void index_world::locate(simulated_shard& at, message& x, time_point now) {
  auto query = key_batch{};
  for (const auto id : x.pages)
    query.keys.push_back(members_[writer_of(id)].pages.key(number_of(id)));
  auto found = at.locate(query, now);
  x.shards_known = found.shards_digest;
  if (x.why == purpose::repairing) {
    x.replicas = std::move(found.replicas);
    return;
  }
  auto unknown = std::vector<page_id>{};
  for (auto i = size_t{0}; i < x.pages.size(); ++i) {
    const auto& copies = found.replicas[i];
    if (copies.empty()) {
      (found.is_partial ? x.doubtful : unknown).push_back(x.pages[i]);
      continue;
    }
    auto is_reached = false;
    for (const auto& copy : copies) {
      const auto holder = static_cast<uint32_t>(copy.member - 1);
      const auto page = announced(holder, x.pages[i]);
      seen_.wrong
        += page && copy == replica{copy.member, page->offset, page->generation, page->length} ? 0
                                                                                              : 1;
      is_reached = is_reached || members_[holder].fate == member_fate::alive;
      x.offered.insert(copy.member);
    }
    seen_.stale += is_reached ? 0 : 1;
  }
  count_misses(unknown);
}

void index_world::answer(uint32_t i) {
  auto& x = messages_[i];
  auto& who = members_[x.member];
  const auto& shard = shards_[x.shard];
  const auto& at_shard = who.links[x.shard];
  if (who.fate == member_fate::dead || shard.life != x.life || !shard.is_up
      || at_shard.life != x.life || at_shard.number != x.link)
    return fail(i);
  if (who.fate == member_fate::cut_off)
    return send_again(i, event_kind::answer);
  heard(x.member, x.shards_known);
  switch (x.kind) {
    case message_kind::locate:
      if (x.why == purpose::repairing) {
        enter_holders(x, false);
        break;
      }
      find_routes(x.member, x.offered);
      if (!x.doubtful.empty())
        ask_other(x, x.doubtful);
      break;
    case message_kind::list:
      x.why == purpose::reading ? heard_routes(x, false) : heard_list(x, false);
      break;
    default:
      apply_view(x);
  }
  give_back(i);
}

void index_world::apply_view(message& x) {
  auto& here = members_[x.member].mounts[x.shard];
  auto& progress = here.progress;
  if (x.kind == message_kind::mount) {
    if (x.known && progress.confirm(x.epoch, x.resumed))
      report(x.member, x.shard);
    return;
  }
  const auto is_current = progress.is_mounted() && progress.epoch() == x.epoch;
  if (is_current && !x.known)
    mount(x.member, x.shard);
  for (const auto& key : x.lost)
    if (is_current && holds(x.member, id_of(key)))
      members_[x.member].losses.note(key, now_);
  if (x.kind == message_kind::report) {
    if (x.known && progress.advance(x.epoch, x.next_slot))
      report(x.member, x.shard);
  } else if (x.kind != message_kind::beat && !x.known) {
    unsettle(x.member, x.shard, x.pages);
  }
}

void index_world::fail(uint32_t i) {
  auto& x = messages_[i];
  auto& who = members_[x.member];
  if (who.fate != member_fate::dead) {
    ++seen_.failed;
    if (x.kind != message_kind::list && who.links[x.shard].number == x.link)
      lose_link(x.member, x.shard);
    switch (x.kind) {
      case message_kind::locate:
        x.why == purpose::repairing ? enter_holders(x, true) : ask_other(x, x.pages);
        break;
      case message_kind::list:
        x.why == purpose::reading ? heard_routes(x, true) : heard_list(x, true);
        break;
      case message_kind::publish:
      case message_kind::withdraw:
        unsettle(x.member, x.shard, x.pages);
        break;
      default:
        break;
    }
  }
  give_back(i);
}

} // namespace hicache::bench
