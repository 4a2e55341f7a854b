#include "actors/attachment.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "transport/gather.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <limits>
#include <utility>

namespace hicache {

namespace {

constexpr auto nobody = std::numeric_limits<int64_t>::max();

using machine = attachment_machine;

tl::unexpected<error> from_ranks(const caf::error& err) {
  return fail(ec::rank_unresponsive,
              "the ranks could not agree on a change of L3: " + to_string(from_caf(err)));
}

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<atom::ok> attachment_state::change(const storage_attachment& what, caf::timespan time) {
  if (options.rank != 0)
    return to_caf({ec::unsupported, "rank 0 of the instance is to be asked"});
  if (machine->is_ending())
    return to_caf({ec::stopping, "the instance ends, or a rank of it is gone"});
  if (asking)
    return to_caf({ec::limit_reached, "another change of L3 is under way"});
  if (what.extra_config.size() + what.backend.size() + what.prefetch_policy.size()
      > limits::attachment_text)
    return to_caf(
      {ec::invalid_argument, "the configuration of the backend is too long; expected at most "
                               + std::to_string(limits::attachment_text) + " bytes"});
  auto promise = self->make_response_promise<atom::ok>();
  asking = promise;
  handle(machine::asked{{what, time}});
  return promise;
}

caf::result<atom::ok> attachment_state::end() {
  auto promise = self->make_response_promise<atom::ok>();
  ending.push_back(promise);
  handle(machine::asked_to_end{});
  return promise;
}

// -- internal steps -----------------------------------------------------------

template <class Handle, class... Args>
auto attachment_state::ask(const Handle& whom, std::optional<caf::timespan> time,
                           const Args&... args) {
  return time ? self->request(whom, *time, args...) : self->request(whom, caf::infinite, args...);
}

template <class Next>
void attachment_state::reduce(std::vector<int64_t> values, std::optional<caf::timespan> wait,
                              Next next) {
  ask(peers.ranks, wait, atom::reduce_v, reduction{reduction_channel::admin, std::move(values)})
    .then([next](const reduced& minimum) { next(minimum.values); },
          [next](const caf::error& err) { next(from_ranks(err)); });
}

template <class Next>
void attachment_state::broadcast(const std::vector<std::string>& texts,
                                 std::optional<caf::timespan> wait, Next next) {
  reduce(text_offer(texts, limits::attachment_words), wait,
         [next](const result<std::vector<int64_t>>& minimum) {
           next(minimum.map([](const std::vector<int64_t>& all) { return offered_texts(all); }));
         });
}

void attachment_state::hand_over(const storage_actor& store) {
  const auto handle = caf::actor_cast<caf::strong_actor_ptr>(store);
  self->send(peers.prefetcher, atom::attach_v, handle);
  self->send(peers.backup, atom::attach_v, handle);
}

template <class Handle>
void attachment_state::drain(const Handle& whom, caf::timespan wait, const char* why_not) {
  self->request(whom, wait, atom::drain_v)
    .then([this](atom::ok) { handle(machine::drained{}); },
          [this, why_not](const caf::error&) {
            handle(machine::drained{fail(ec::deadline_exceeded, why_not)});
          });
}

void attachment_state::want(const storage_attachment& what) {
  wanted = what;
  if (wanted.prefetch_policy.empty())
    wanted.prefetch_policy = options.attached.prefetch_policy;
}

// -- actions of the machine ---------------------------------------------------

void attachment_state::handle(const machine::event& what) {
  carry_out(machine->handle(self->clock().now().time_since_epoch(), what));
}

void attachment_state::carry_out(const std::vector<machine::action>& actions) {
  for (const auto& action : actions)
    std::visit([this](const auto& each) { act(each); }, action);
}

void attachment_state::act(const machine::announce& what) {
  auto texts = std::vector<std::string>{};
  if (what.what)
    texts = {std::to_string(what.what->patience.count()), what.what->is_end ? "end" : "",
             what.what->wanted.backend, what.what->wanted.prefetch_policy,
             what.what->wanted.extra_config};
  broadcast(texts, {}, [this](const result<std::vector<std::string>>& said) {
    handle(machine::heard{said.map([](const std::vector<std::string>& heard) {
      HICACHE_CHECK(heard.size() == 5);
      return machine::request{
        {heard[2], heard[4], heard[3]}, caf::timespan{std::stoll(heard[0])}, !heard[1].empty()};
    })});
  });
}

void attachment_state::act(const machine::open& what) {
  want(what.wanted);
  auto opened = options.open(wanted);
  fresh = opened.value_or(open_store{});
  handle(machine::opened{opened.map([](const open_store&) {})});
}

void attachment_state::act(const machine::prepare& what) {
  want(what.wanted);
  auto change = options.change(wanted, what.wait);
  prepared = change.value_or(store_change{});
  handle(machine::opened{change.map([](const store_change&) {})});
}

void attachment_state::act(const machine::vote& what) {
  reduce({what.is_well ? nobody : int64_t{options.rank}}, what.wait,
         [this](const result<std::vector<int64_t>>& minimum) {
           handle(machine::voted{minimum.map([](const std::vector<int64_t>& values) {
             return values.front() == nobody ? std::optional<uint32_t>{}
                                             : static_cast<uint32_t>(values.front());
           })});
         });
}

void attachment_state::act(const machine::explain& what) {
  auto texts = std::vector<std::string>{};
  if (what.speaker == options.rank)
    texts = {std::to_string(static_cast<int>(what.why.code)),
             what.why.detail.substr(0, limits::attachment_text)};
  broadcast(
    texts, what.wait, [this, speaker = what.speaker](const result<std::vector<std::string>>& said) {
      handle(machine::explained{said ? error{static_cast<ec>(std::stoi((*said)[0])),
                                             "rank " + std::to_string(speaker) + ": " + (*said)[1]}
                                     : said.error(),
                                !said});
    });
}

void attachment_state::act(const machine::freeze&) {
  self->request(peers.tree, caf::infinite, atom::freeze_v)
    .then(
      [this](uint64_t begun) { handle(machine::frozen{begun}); },
      [this](const caf::error& err) { handle(machine::frozen{tl::unexpected{from_caf(err)}}); });
}

void attachment_state::act(const machine::fix& what) {
  reduce({-static_cast<int64_t>(what.begun)}, options.patience,
         [this](const result<std::vector<int64_t>>& minimum) {
           handle(machine::fixed{minimum.map([](const std::vector<int64_t>& values) {
             return static_cast<uint64_t>(-values.front());
           })});
         });
}

void attachment_state::act(const machine::abort&) {
  self->send(peers.tree, atom::abort_v);
}

void attachment_state::act(const machine::commit& what) {
  auto change = storage_change{what.what};
  if (what.what == storage_change::action::attach)
    change
      = {what.what, options.attached.backend, options.store.prefetch, options.store.exports_l2};
  const auto is_awaited = what.what != storage_change::action::attach;
  const auto on_outcome = [this, is_awaited](const result<void>& outcome) {
    if (is_awaited)
      handle(machine::applied{outcome});
  };
  ask(peers.tree, what.wait, atom::commit_v, change, what.before)
    .then([on_outcome](atom::ok) { on_outcome({}); },
          [on_outcome](const caf::error& err) { on_outcome(tl::unexpected{from_caf(err)}); });
}

void attachment_state::act(const machine::drain_reads& what) {
  drain(peers.prefetcher, what.wait, "reads of L3 are still under way");
}

void attachment_state::act(const machine::drain_writes& what) {
  drain(peers.backup, what.wait, "writes to L3 are still under way");
}

void attachment_state::act(const machine::use_store&) {
  options.attached = wanted;
  options.store = std::exchange(fresh, {});
  hand_over(options.store.actor);
}

void attachment_state::act(const machine::discard_store&) {
  if (const auto unused = std::exchange(fresh, {}); unused.close)
    unused.close();
}

void attachment_state::act(const machine::adopt&) {
  std::exchange(prepared, {}).adopt();
  options.attached = wanted;
}

void attachment_state::act(const machine::revert&) {
  if (const auto unused = std::exchange(prepared, {}); unused.revert)
    unused.revert();
}

void attachment_state::act(const machine::close_store&) {
  hand_over({});
  std::exchange(options.store, {}).close();
  options.attached.backend.clear();
  options.attached.extra_config.clear();
}

void attachment_state::act(const machine::answer& what) {
  if (!what.outcome)
    spdlog::warn("L3 was not changed: {}", to_string(what.outcome.error()));
  auto promise = std::exchange(asking, std::nullopt);
  if (promise && what.outcome)
    promise->deliver(atom::ok_v);
  else if (promise)
    promise->deliver(to_caf(what.outcome.error()));
}

void attachment_state::act(const machine::end&) {
  for (auto& promise : std::exchange(ending, {}))
    promise.deliver(atom::ok_v);
}

// -- actor --------------------------------------------------------------------

attachment_actor::behavior_type
attachment(attachment_actor::stateful_pointer<attachment_state> self, attachment_options options,
           attachment_peers peers) {
  HICACHE_CHECK(options.open && options.change && peers.tree && peers.prefetcher && peers.backup
                && peers.ranks);
  auto& state = self->state;
  state.machine.emplace(options.rank, options.patience, options.attached.backend);
  state.options = std::move(options);
  state.peers = std::move(peers);
  state.carry_out(state.machine->start());
  return {
    [self](atom::status) { return self->state.options.attached; },
    [self](atom::attach, const storage_attachment& wanted, caf::timespan time) {
      return self->state.change(wanted, time);
    },
    [self](atom::abort) { return self->state.end(); },
  };
}

} // namespace hicache
