#include "bench/store_actors.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>
#include <utility>

namespace hicache::bench {

namespace {

constexpr auto page_bytes = uint64_t{4096};

struct member_state {
  static inline constexpr auto name = "bench_member";

  explicit member_state(caf::event_based_actor* owner) : self(owner) {}

  void start(const caf::actor& whom) {
    listener = whom;
    auto on_view = [this](const membership&) {
      for (auto i = uint64_t{0}; i < outstanding; ++i)
        announce_next();
    };
    self->request(shard, caf::infinite, atom::mount_v, info)
      .then(on_view, [this](const caf::error& err) { self->quit(err); });
  }

  void announce_next() {
    if (left.empty()) {
      if (under_way == 0 && listener)
        self->send(std::exchange(listener, nullptr), atom::done_v);
      return;
    }
    ++under_way;
    auto on_view = [this](const membership& view) {
      --under_way;
      if (!view.known)
        self->quit(caf::exit_reason::user_shutdown);
      announce_next();
    };
    self->request(shard, caf::infinite, atom::publish_v, std::move(left.back()))
      .then(on_view, [this](const caf::error& err) { self->quit(err); });
    left.pop_back();
  }

  caf::event_based_actor* self;
  index_actor shard;
  member_info info;
  std::vector<published_pages> left;
  uint64_t outstanding = 1;
  uint64_t under_way = 0;
  caf::actor listener;
};

caf::behavior member(caf::stateful_actor<member_state>* self, index_actor shard, member_info info,
                     std::vector<published_pages> pages, uint64_t outstanding) {
  auto& state = self->state;
  state.shard = std::move(shard);
  state.info = std::move(info);
  state.left = std::move(pages);
  state.outstanding = outstanding;
  return {[self](atom::start, const caf::actor& whom) { self->state.start(whom); }};
}

} // namespace

member_info describe(uint64_t id, uint64_t pages) {
  auto info = member_info{};
  info.member = id;
  info.epoch = 1;
  info.host = "bench";
  info.memory_name = "none";
  info.page_address = "127.0.0.1:1";
  info.capacity_bytes = pages * page_bytes;
  return info;
}

std::vector<published_pages> announcements(uint64_t id, uint64_t first, uint64_t count,
                                           uint64_t batch) {
  auto all = std::vector<published_pages>{};
  auto offset = uint64_t{0};
  for (const auto& keys : key_batches(first, count, batch)) {
    auto& news = all.emplace_back(published_pages{id, 1, {}});
    for (const auto& key : keys) {
      news.pages.push_back({key, offset, 1, page_bytes});
      offset += page_bytes;
    }
  }
  return all;
}

result<void> announce_keys(const announce_options& options) {
  if (options.index.is_bare) {
    const auto figures = announce_bare_keys(options);
    if (!figures)
      return tl::unexpected{figures.error()};
    std::printf("%s\n", figures->dump().c_str());
    return {};
  }
  auto client = index_client::connect(options.index.at);
  if (!client)
    return tl::unexpected{client.error()};
  auto& system = (*client)->system();
  auto source = std::random_device{};
  const auto first_id = (uint64_t{source()} << 32) | (source() & 0xffff0000U);
  const auto pages = options.keys / options.members;
  auto members = std::vector<caf::actor>{};
  for (auto i = uint64_t{0}; i < options.members; ++i)
    members.push_back(system.spawn(member, (*client)->shard(), describe(first_id + i, pages),
                                   announcements(first_id + i, i * pages, pages, options.batch),
                                   options.outstanding));
  auto self = caf::scoped_actor{system};
  auto lost = false;
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& one : members) {
    self->monitor(one);
    self->send(one, atom::start_v, caf::actor_cast<caf::actor>(self));
    self->receive([](atom::done) {}, [&](const caf::down_msg&) { lost = true; });
    if (lost)
      return fail(ec::peer_unreachable, "the index does not take the pages of a member");
    self->demonitor(one->address());
  }
  const auto seconds
    = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto keys = pages * options.members;
  const auto figures
    = nlohmann::json{{"keys", keys}, {"keys_per_s", static_cast<double>(keys) / seconds}};
  std::printf("%s\n", figures.dump().c_str());
  std::fflush(stdout);
  for (auto line = std::string{}; options.stay && std::getline(std::cin, line);)
    if (!members.empty()) {
      self->send_exit(members.back(), caf::exit_reason::user_shutdown);
      members.pop_back();
    }
  for (const auto& one : members)
    self->send_exit(one, caf::exit_reason::user_shutdown);
  return {};
}

} // namespace hicache::bench
