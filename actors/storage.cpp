#include "actors/storage.hpp"

#include "base/check.hpp"
#include "cache/page_hash.hpp"

#include <caf/send.hpp>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// A first page has no parent, and so has its object.
constexpr auto no_parent = page_key{};

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<uint64_t> storage_state::exists(const storage_batch& batch, caf::timespan timeout) {
  auto promise = self->make_response_promise<uint64_t>();
  const auto ticket = ++last_ticket;
  counting.emplace(ticket, promise);
  auto on_done = [me = storage_actor{self}, ticket](const std::vector<bool>& found) {
    auto codes = std::vector<ec>{};
    for (const auto here : found)
      codes.push_back(here ? ec::none : ec::not_found);
    caf::anon_send(me, atom::done_v, storage_completion{ticket, std::move(codes)});
  };
  queue->submit_exists(object_names(batch), options->clock->now() + timeout, on_done);
  return promise;
}

caf::result<storage_outcome> storage_state::get(const storage_batch& batch, caf::timespan timeout) {
  auto reads = std::vector<page_read>{};
  reads.reserve(batch.count);
  for (auto i = uint64_t{0}; i < batch.count; ++i)
    reads.push_back({object_name((*batch.keys)[batch.first + i]),
                     parts_of<std::byte>((*batch.host_pages)[batch.host_first + i])});
  auto promise = self->make_response_promise<storage_outcome>();
  queue->submit_get(std::move(reads), options->clock->now() + timeout, await(promise));
  return promise;
}

caf::result<storage_outcome> storage_state::set(const storage_batch& batch, caf::timespan timeout) {
  auto writes = std::vector<page_write>{};
  writes.reserve(batch.count);
  for (auto i = uint64_t{0}; i < batch.count; ++i) {
    const auto& parent = (*batch.parents)[batch.first + i];
    writes.push_back({object_name((*batch.keys)[batch.first + i]),
                      parent == no_parent ? parent : object_name(parent),
                      parts_of<const std::byte>((*batch.host_pages)[batch.host_first + i])});
  }
  auto promise = self->make_response_promise<storage_outcome>();
  queue->submit_set(std::move(writes), options->clock->now() + timeout, await(promise));
  return promise;
}

caf::result<storage_outcome> storage_state::remove(const storage_batch& batch,
                                                   caf::timespan timeout) {
  auto promise = self->make_response_promise<storage_outcome>();
  queue->submit_remove(object_names(batch), options->clock->now() + timeout, await(promise));
  return promise;
}

void storage_state::finish(const storage_completion& completion) {
  if (auto node = counting.extract(completion.ticket)) {
    const auto& codes = completion.pages;
    const auto gap
      = std::find_if(codes.begin(), codes.end(), [](ec code) { return code != ec::none; });
    node.mapped().deliver(static_cast<uint64_t>(gap - codes.begin()));
  } else if (auto move = moving.extract(completion.ticket)) {
    move.mapped().deliver(storage_outcome{completion.pages});
  }
}

// -- internal steps -----------------------------------------------------------

page_key storage_state::object_name(const page_key& page) const {
  return object_key(page, options->fingerprint, options->shard);
}

std::vector<page_key> storage_state::object_names(const storage_batch& batch) const {
  auto names = std::vector<page_key>{};
  names.reserve(batch.count);
  for (auto i = uint64_t{0}; i < batch.count; ++i)
    names.push_back(object_name((*batch.keys)[batch.first + i]));
  return names;
}

template <class Byte>
std::vector<std::span<Byte>> storage_state::parts_of(page_index page) const {
  auto parts = std::vector<std::span<Byte>>{};
  for (const auto& run : options->host_geometry.object_runs(page))
    parts.emplace_back(options->host_memory + run.offset, run.length);
  return parts;
}

storage_queue::pages_callback
storage_state::await(caf::typed_response_promise<storage_outcome> promise) {
  const auto ticket = ++last_ticket;
  moving.emplace(ticket, std::move(promise));
  return [me = storage_actor{self}, ticket](const std::vector<result<void>>& outcome) {
    auto codes = std::vector<ec>{};
    codes.reserve(outcome.size());
    for (const auto& page : outcome)
      codes.push_back(page ? ec::none : page.error().code);
    caf::anon_send(me, atom::done_v, storage_completion{ticket, std::move(codes)});
  };
}

// -- actor --------------------------------------------------------------------

storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options,
                                     std::unique_ptr<storage_queue> queue) {
  HICACHE_CHECK(queue != nullptr && options.host_memory != nullptr && options.clock != nullptr);
  self->state.options.emplace(std::move(options));
  self->state.queue = std::move(queue);
  return {
    [self](atom::exists, const storage_batch& batch, caf::timespan timeout) {
      return self->state.exists(batch, timeout);
    },
    [self](atom::get, const storage_batch& batch, caf::timespan timeout) {
      return self->state.get(batch, timeout);
    },
    [self](atom::set, const storage_batch& batch, caf::timespan timeout) {
      return self->state.set(batch, timeout);
    },
    [self](atom::remove, const storage_batch& batch, caf::timespan timeout) {
      return self->state.remove(batch, timeout);
    },
    [self](atom::done, const storage_completion& completion) { self->state.finish(completion); },
    [self](atom::counters) {
      auto counters = rank_counters{};
      counters.evicted_l3 = self->state.queue->backend().health().counters.evicted;
      return counters;
    },
  };
}

} // namespace hicache
