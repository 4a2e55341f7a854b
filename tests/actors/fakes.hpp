#pragma once

#include "backends/memory_backend.hpp"
#include "cache/hash/page_names.hpp"
#include "messages/interfaces.hpp"
#include "tests/support/actor_test.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/response_promise.hpp>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

/// Key number `i` of a test.
inline page_key key_of(uint64_t i) {
  auto key = page_key{};
  std::memcpy(key.bytes.data(), &i, sizeof(i));
  key.bytes[31] = 1; // Never the key that means "no page".
  return key;
}

inline key_list keys_of(uint64_t first, uint64_t count) {
  auto keys = std::vector<page_key>{};
  for (auto i = first; i < first + count; ++i)
    keys.push_back(key_of(i));
  return std::make_shared<const std::vector<page_key>>(std::move(keys));
}

/// Pages that are named so, after the page `before`.
inline name_list names_of(std::vector<page_key> keys, std::optional<page_key> before = {}) {
  const auto run = [](std::vector<page_key> list) {
    const auto count = list.size();
    return name_run{std::make_shared<const page_names>(std::move(list)), 0, count};
  };
  return std::make_shared<const path_names>(std::vector{run(std::move(keys))},
                                            before ? run({*before}) : name_run{});
}

/// Pages `first`... after the page first - 1.
inline name_list names_of(uint64_t first, uint64_t count) {
  return names_of(*keys_of(first, count), key_of(first - 1));
}

inline page_list pages_of(std::vector<page_index> pages) {
  return std::make_shared<const std::vector<page_index>>(std::move(pages));
}

/// Pages first, first + 1, ...
inline page_list page_run(page_index first, uint32_t count) {
  auto pages = std::vector<page_index>(count);
  for (auto i = uint32_t{0}; i < count; ++i)
    pages[i] = first + i;
  return pages_of(std::move(pages));
}

// -- recorder -----------------------------------------------------------------

/// Everything that a recorder received.
struct recording {
  std::vector<copy_batch> copies;
  /// What the batches hold.
  std::vector<write_command> writes;
  std::vector<load_command> loads;
  std::vector<backup_command> backups;
  std::vector<fetch_command> fetches;
  std::vector<fetch_id> terminated;
  std::vector<operation_id> dropped;
  uint64_t news = 0;
  uint64_t reclaims = 0;
  std::vector<page_index> filled_staging;
  std::vector<operation_done> done;
  std::vector<fetched_pages> fetched;
  std::vector<error> notices;
};

/// Stands in for any actor that is only told things; runs errands, so that it can be a sender, too.
inline caf::behavior recorder(caf::event_based_actor* self, std::shared_ptr<recording> log) {
  return {
    [log](atom::copy, const copy_batch& x) {
      log->copies.push_back(x);
      log->writes.insert(log->writes.end(), x.writes.begin(), x.writes.end());
      log->loads.insert(log->loads.end(), x.loads.begin(), x.loads.end());
    },
    [log](atom::backup, const backup_command& x) { log->backups.push_back(x); },
    [log](atom::fetch, const fetch_command& x) { log->fetches.push_back(x); },
    [log](atom::terminate, const terminate_command& x) { log->terminated.push_back(x.id); },
    [log](atom::drop, const drop_command& x) { log->dropped.push_back(x.id); },
    [log](atom::notify) { ++log->news; },
    [log](atom::stage, const reclaim_command&) { ++log->reclaims; },
    [log](atom::stage, const staging_command& x) {
      log->filled_staging.insert(log->filled_staging.end(), x.l2_pages->begin(), x.l2_pages->end());
    },
    [log](atom::done, const operation_done& x) { log->done.push_back(x); },
    [log](atom::fetched, const fetched_pages& x) { log->fetched.push_back(x); },
    [log](atom::notice, const caf::error& x) { log->notices.push_back(from_caf(x)); },
    [](const membership&) {},
    [self](const errand& x) { x.run(self); },
  };
}

/// Sends as the recorder, so that answers come back to it.
template <class Handle, class... Args>
void send_as(const caf::actor& from, const Handle& to, Args... args) {
  auto send = [to, sent = std::make_tuple(std::move(args)...)](caf::event_based_actor* self) {
    std::apply([&](const auto&... xs) { self->send(to, xs...); }, sent);
  };
  caf::anon_send(from, errand{std::move(send)});
}

// -- storage that answers when the test says so -------------------------------

/// A request that a fake storage has not answered.
struct held_request {
  std::string verb;
  storage_batch batch;
  caf::timespan timeout{};
  caf::response_promise promise;
};

using held_requests = std::deque<held_request>;

inline caf::behavior fake_storage(caf::event_based_actor* self, std::shared_ptr<held_requests> held,
                                  bool orders_writes) {
  const auto hold
    = [self, held](const char* verb, const storage_batch& batch, caf::timespan timeout) {
        held->push_back({verb, batch, timeout, self->make_response_promise()});
        return held->back().promise;
      };
  return {
    [hold](atom::exists, const storage_batch& x, caf::timespan t) { return hold("exists", x, t); },
    [hold](atom::get, const storage_batch& x, caf::timespan t) { return hold("get", x, t); },
    [hold](atom::set, const storage_batch& x, caf::timespan t) { return hold("set", x, t); },
    [hold](atom::drain, uint64_t) { return hold("drain", {}, {}); },
    [orders_writes](atom::status) {
      return storage_status{"fake", orders_writes, {}, {}};
    },
    [self](const errand& x) { x.run(self); },
  };
}

// -- storage that answers late ------------------------------------------------

/// What stands between the users of a storage actor and the storage. Requests pass one by one, each
/// when the actor is scheduled, in any order that `draw` gives.
struct storage_gate {
  bool is_open = true;
  /// A number below its argument; null: requests pass at once, in order.
  std::function<uint32_t(uint32_t)> draw;
  /// The code that the next request is answered with instead; ec::none, or null, lets it pass.
  std::function<ec()> fault;
  held_requests held;
  /// Pages of each request that came so far, by verb.
  std::map<std::string, std::vector<uint64_t>> asked;
};

using storage_gate_ptr = std::shared_ptr<storage_gate>;

/// Lets one request of a gate pass.
inline void pass_gate(caf::event_based_actor* self, const storage_gate_ptr& gate,
                      const storage_actor& storage) {
  if (!gate->is_open || gate->held.empty())
    return;
  if (gate->draw && gate->draw(3) == 0) { // Not yet.
    self->send(self, errand{[gate, storage](auto* me) { pass_gate(me, gate, storage); }});
    return;
  }
  const auto which = gate->draw ? gate->draw(static_cast<uint32_t>(gate->held.size())) : 0;
  const auto request = gate->held[which];
  gate->held.erase(gate->held.begin() + which);
  auto promise = request.promise;
  if (const auto code = gate->fault ? gate->fault() : ec::none; code != ec::none) {
    promise.deliver(to_caf({code, "the gate is shut"}));
    return;
  }
  const auto on_error = [promise](const caf::error& err) mutable { promise.deliver(err); };
  const auto on_outcome = [promise](const storage_outcome& x) mutable { promise.deliver(x); };
  if (request.verb == "exists")
    self->request(storage, caf::infinite, atom::exists_v, request.batch, request.timeout)
      .then([promise](const storage_hit& x) mutable { promise.deliver(x); }, on_error);
  else if (request.verb == "get")
    self->request(storage, caf::infinite, atom::get_v, request.batch, request.timeout)
      .then(on_outcome, on_error);
  else
    self->request(storage, caf::infinite, atom::set_v, request.batch, request.timeout)
      .then(on_outcome, on_error);
}

inline caf::behavior gated_storage(caf::event_based_actor* self, const storage_gate_ptr& gate,
                                   const storage_actor& storage) {
  const auto hold = [=](const char* verb, const storage_batch& batch, caf::timespan timeout) {
    gate->held.push_back({verb, batch, timeout, self->make_response_promise()});
    gate->asked[verb].push_back(batch.count);
    self->send(self, errand{[=](auto* me) { pass_gate(me, gate, storage); }});
    return gate->held.back().promise;
  };
  return {
    [hold](atom::exists, const storage_batch& x, caf::timespan t) { return hold("exists", x, t); },
    [hold](atom::get, const storage_batch& x, caf::timespan t) { return hold("get", x, t); },
    [hold](atom::set, const storage_batch& x, caf::timespan t) { return hold("set", x, t); },
    [](atom::status) {
      return storage_status{"gated", false, {}, {}};
    },
    [self](const errand& x) { x.run(self); },
  };
}

// -- a store for all ranks of a test ------------------------------------------

/// Pages in memory, behind as many backends as there are ranks. Fails where the test says so.
class shared_store {
public:
  explicit shared_store(const clock_source& clock)
    : pages_(std::shared_ptr<blocking_store>{make_memory_backend(0, clock)}) {}

  /// The code with which reading or writing an object fails; ec::none lets it pass. Must outlive
  /// the backends.
  std::function<ec(const page_key& object)> fault_on_get;
  std::function<ec(const page_key& object)> fault_on_set;

  std::unique_ptr<blocking_store> open() { return std::make_unique<view>(*this, pages_); }

  uint64_t objects() const { return pages_->health().objects; }

private:
  class view final : public blocking_store {
  public:
    view(shared_store& owner, std::shared_ptr<blocking_store> pages)
      : owner_(owner), pages_(std::move(pages)) {}

    std::string name() const override { return "shared"; }

    std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
      return pages_->exists(keys, deadline);
    }

    std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override {
      auto answers = std::vector<result<void>>{};
      for (const auto& page : pages)
        answers.push_back(checked(owner_.fault_on_get, page.key, [&] {
          return pages_->get({&page, 1}, deadline).front();
        }));
      return answers;
    }

    std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
      auto answers = std::vector<result<void>>{};
      for (const auto& page : pages)
        answers.push_back(checked(owner_.fault_on_set, page.key, [&] {
          return pages_->set({&page, 1}, deadline).front();
        }));
      return answers;
    }

    std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
      return pages_->remove(keys, deadline);
    }

    backend_health health() override { return pages_->health(); }

  private:
    template <class Go>
    static result<void> checked(const std::function<ec(const page_key&)>& fault,
                                const page_key& object, Go go) {
      if (const auto code = fault ? fault(object) : ec::none; code != ec::none)
        return fail(code);
      return go();
    }

    shared_store& owner_;
    std::shared_ptr<blocking_store> pages_;
  };

  std::shared_ptr<blocking_store> pages_;
};

} // namespace hicache::test
