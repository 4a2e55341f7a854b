#include "actors/attachment.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "transport/gather.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace hicache {

namespace {

constexpr auto nobody = std::numeric_limits<int64_t>::max();

error without_code(const caf::error& err) {
  const auto why = from_caf(err);
  return {ec::rank_unresponsive, "the ranks could not agree on a change of L3: " + to_string(why)};
}

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<atom::ok> attachment_state::change(const storage_attachment& wanted,
                                               caf::timespan time) {
  if (options.rank != 0)
    return to_caf({ec::unsupported, "rank 0 of the instance is to be asked"});
  if (is_over || !ending.empty())
    return to_caf({ec::stopping, "the instance ends, or a rank of it is gone"});
  if (asking)
    return to_caf({ec::limit_reached, "another change of L3 is under way"});
  if (wanted.extra_config.size() + wanted.backend.size() + wanted.prefetch_policy.size()
      > limits::attachment_text)
    return to_caf(
      {ec::invalid_argument, "the configuration of the backend is too long; expected at most "
                               + std::to_string(limits::attachment_text) + " bytes"});
  asking = self->make_response_promise<atom::ok>();
  announce({wanted, time});
  return *asking;
}

caf::result<atom::ok> attachment_state::end() {
  auto promise = self->make_response_promise<atom::ok>();
  if (is_over) {
    promise.deliver(atom::ok_v);
    return promise;
  }
  const auto is_first = ending.empty();
  ending.push_back(promise);
  if (options.rank == 0 && !asking && is_first)
    announce({{}, {}, true});
  return promise;
}

// -- the ranks hear of a request ----------------------------------------------

void attachment_state::listen() {
  if (options.rank != 0)
    announce({});
  else if (!ending.empty())
    announce({{}, {}, true});
}

void attachment_state::announce(const request& what) {
  auto offer = std::vector<int64_t>(limits::attachment_words, nobody);
  if (options.rank == 0)
    offer = text_offer({std::to_string(what.time.count()), what.is_end ? "end" : "",
                        what.wanted.backend, what.wanted.prefetch_policy, what.wanted.extra_config},
                       limits::attachment_words);
  // Ranks other than 0 wait here for as long as nobody asks for anything.
  reduce(std::move(offer), {}, [this](const result<std::vector<int64_t>>& minimum) {
    if (!minimum)
      return conclude(tl::unexpected{minimum.error()});
    const auto texts = offered_texts(*minimum);
    HICACHE_CHECK(texts.size() == 5);
    begin({{texts[2], texts[4], texts[3]}, caf::timespan{std::stoll(texts[0])}, !texts[1].empty()});
  });
}

void attachment_state::begin(const request& what) {
  if (what.is_end) {
    is_over = true;
    for (auto& promise : std::exchange(ending, {}))
      promise.deliver(atom::ok_v);
  } else if (what.wanted.backend.empty()) {
    begin_detach(what);
  } else {
    begin_attach(what);
  }
}

// -- attaching ----------------------------------------------------------------

void attachment_state::begin_attach(const request& what) {
  auto wanted = what.wanted;
  if (wanted.prefetch_policy.empty())
    wanted.prefetch_policy = options.attached.prefetch_policy;
  auto opened = options.store.actor
                  ? fail(ec::invalid_argument, "the backend " + options.attached.backend
                                                 + " is attached; expected it to be detached first")
                  : options.open(wanted);
  const auto mine = opened.map([](const open_store&) {});
  const auto store = opened ? *opened : open_store{};
  agree(mine, what.time, [this, wanted, store](const result<void>& all) {
    if (!all) {
      if (store.close)
        store.close();
      return conclude(all);
    }
    options.attached = wanted;
    options.store = store;
    const auto handle = caf::actor_cast<caf::strong_actor_ptr>(store.actor);
    self->send(peers.prefetcher, atom::attach_v, handle);
    self->send(peers.backup, atom::attach_v, handle);
    commit(
      attach_change(), [this] { conclude({}); }, std::nullopt, [](const result<void>&) {});
  });
}

storage_change attachment_state::attach_change() const {
  return {storage_change::action::attach, options.attached.backend, options.store.prefetch,
          options.store.lends_host};
}

// -- detaching ----------------------------------------------------------------

void attachment_state::begin_detach(const request& what) {
  if (!options.store.actor)
    return conclude({});
  const auto time = what.time;
  // One time for all that is waited for: the other ranks' patience begins when they are done.
  const auto left = [this, until = self->clock().now() + time] {
    return std::max(caf::timespan{until - self->clock().now()}, caf::timespan{1});
  };
  const auto drain_backup = [this, time, left] {
    self->request(peers.backup, left(), atom::drain_v)
      .then([this, time](atom::ok) { finish_detach(time, {}); },
            [this, time](const caf::error&) {
              finish_detach(time, fail(ec::deadline_exceeded, "writes to L3 are still under way"));
            });
  };
  const auto on_applied = [this, time, left, drain_backup](const result<void>& applied) {
    if (!applied)
      return finish_detach(time, fail(ec::deadline_exceeded, "the engine makes no steps"));
    self->request(peers.prefetcher, left(), atom::drain_v)
      .then([drain_backup](atom::ok) { drain_backup(); },
            [this, time](const caf::error&) {
              finish_detach(time, fail(ec::deadline_exceeded, "reads of L3 are still under way"));
            });
  };
  commit(
    {storage_change::action::detach}, [] {}, time, on_applied);
}

void attachment_state::finish_detach(caf::timespan time, const result<void>& drained) {
  agree(drained, time, [this](const result<void>& all) {
    if (!all) {
      commit(
        attach_change(), [this, all] { conclude(all); }, std::nullopt, [](const result<void>&) {});
      return;
    }
    const auto on_applied = [this](const result<void>&) {
      self->send(peers.prefetcher, atom::attach_v, caf::strong_actor_ptr{});
      self->send(peers.backup, atom::attach_v, caf::strong_actor_ptr{});
      options.store.close();
      options.store = {};
      options.attached.backend.clear();
      options.attached.extra_config.clear();
      // Whoever asked hears of it when no rank offers pages any more.
      reduce({nobody}, std::nullopt, [this](const result<std::vector<int64_t>>& closed) {
        conclude(closed.map([](const std::vector<int64_t>&) {}));
      });
    };
    commit(
      {storage_change::action::release}, [] {}, std::nullopt, on_applied);
  });
}

// -- agreeing -----------------------------------------------------------------

template <class Handle, class... Args>
auto attachment_state::ask(const Handle& whom, std::optional<caf::timespan> time,
                           const Args&... args) {
  return time ? self->request(whom, *time, args...) : self->request(whom, caf::infinite, args...);
}

void attachment_state::reduce(std::vector<int64_t> values, std::optional<caf::timespan> time,
                              next_step next) {
  const auto offer = reduction{reduction_channel::admin, std::move(values)};
  ask(peers.ranks, time, atom::reduce_v, offer)
    .then([next](const reduced& minimum) { next(minimum.values); },
          [this, next](const caf::error& err) {
            is_over = true; // Nothing can be agreed on any more.
            next(tl::unexpected{without_code(err)});
          });
}

void attachment_state::agree(const result<void>& mine, caf::timespan time,
                             std::function<void(const result<void>&)> next) {
  const auto patience = time + options.patience;
  reduce({mine ? nobody : int64_t{options.rank}}, patience,
         [this, mine, patience, next](const result<std::vector<int64_t>>& first) {
           if (!first)
             return next(tl::unexpected{first.error()});
           const auto speaker = first->front();
           if (speaker == nobody)
             return next({});
           auto offer = std::vector<int64_t>(limits::attachment_words, nobody);
           if (speaker == int64_t{options.rank}) {
             auto detail = mine.error().detail;
             detail.resize(std::min(detail.size(), limits::attachment_text));
             offer = text_offer({std::to_string(static_cast<int>(mine.error().code)), detail},
                                limits::attachment_words);
           }
           reduce(std::move(offer), patience, [speaker, next](const auto& minimum) {
             if (!minimum)
               return next(tl::unexpected{minimum.error()});
             const auto texts = offered_texts(*minimum);
             next(fail(static_cast<ec>(std::stoi(texts[0])),
                       "rank " + std::to_string(speaker) + ": " + texts[1]));
           });
         });
}

void attachment_state::commit(const storage_change& change, std::function<void()> on_agreed,
                              std::optional<caf::timespan> time,
                              std::function<void(const result<void>&)> on_applied) {
  const auto on_steps = [this, change, on_agreed, time, on_applied](const auto& minimum) {
    if (!minimum) {
      self->send(peers.tree, atom::abort_v);
      return conclude(tl::unexpected{minimum.error()});
    }
    const auto before = static_cast<uint64_t>(-minimum->front()) + 1;
    ask(peers.tree, time, atom::commit_v, change, before)
      .then([on_applied](atom::ok) { on_applied({}); },
            [on_applied](const caf::error& err) { on_applied(tl::unexpected{from_caf(err)}); });
    on_agreed();
  };
  self->request(peers.tree, caf::infinite, atom::freeze_v)
    .then([this, on_steps](
            uint64_t begun) { reduce({-static_cast<int64_t>(begun)}, options.patience, on_steps); },
          [this](const caf::error& err) { conclude(tl::unexpected{from_caf(err)}); });
}

void attachment_state::conclude(const result<void>& outcome) {
  if (!outcome)
    spdlog::warn("L3 was not changed: {}", to_string(outcome.error()));
  if (auto promise = std::exchange(asking, std::nullopt)) {
    if (outcome)
      promise->deliver(atom::ok_v);
    else
      promise->deliver(to_caf(outcome.error()));
  }
  if (!is_over)
    return listen();
  for (auto& promise : std::exchange(ending, {}))
    promise.deliver(atom::ok_v);
}

// -- actor --------------------------------------------------------------------

attachment_actor::behavior_type
attachment(attachment_actor::stateful_pointer<attachment_state> self, attachment_options options,
           attachment_peers peers) {
  HICACHE_CHECK(options.open && peers.tree && peers.prefetcher && peers.backup && peers.ranks);
  self->state.options = std::move(options);
  self->state.peers = std::move(peers);
  self->state.listen();
  return {
    [self](atom::status) { return self->state.options.attached; },
    [self](atom::attach, const storage_attachment& wanted, caf::timespan time) {
      return self->state.change(wanted, time);
    },
    [self](atom::abort) { return self->state.end(); },
  };
}

} // namespace hicache
