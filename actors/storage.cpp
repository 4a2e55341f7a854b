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

template <class Iterator>
Iterator first_failure(Iterator begin, Iterator end) {
  return std::find_if(begin, end, [](ec code) { return code != ec::none; });
}

/// Puts the outcomes of objects together to those of pages.
storage_outcome outcome_of(const std::vector<bool>& moved, const std::vector<ec>& objects,
                           size_t objects_per_page) {
  auto outcome = storage_outcome{std::vector<ec>(moved.size(), ec::none)};
  auto object = objects.begin();
  auto failed = false;
  for (auto i = size_t{0}; i < moved.size(); ++i) {
    if (!moved[i]) {
      outcome.left_to_others += failed ? 0 : 1;
      continue;
    }
    const auto end = object + static_cast<ptrdiff_t>(objects_per_page);
    if (const auto failure = first_failure(object, end); failure != end) {
      outcome.pages[i] = *failure;
      failed = true;
    }
    object = end;
  }
  return outcome;
}

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
  if (options->lent)
    options->lent->reclaim(std::span{*batch.host_pages}.subspan(batch.host_first, batch.count));
  auto reads = std::vector<page_read>{};
  reads.reserve(batch.count * options->groups.size());
  for (auto i = uint64_t{0}; i < batch.count; ++i)
    for (auto k = size_t{0}; k < masks.size(); ++k)
      reads.push_back(
        {object_key((*batch.keys)[batch.first + i], masks[k]),
         parts_of<std::byte>((*batch.host_pages)[batch.host_first + i], options->groups[k])});
  auto promise = self->make_response_promise<storage_outcome>();
  queue->submit_get(std::move(reads), options->clock->now() + timeout,
                    await({promise, std::vector<bool>(batch.count, true)}));
  return promise;
}

caf::result<storage_outcome> storage_state::set(const storage_batch& batch, caf::timespan timeout) {
  auto writes = std::vector<page_write>{};
  auto moved = std::vector<bool>{};
  for (auto i = uint64_t{0}; i < batch.count; ++i) {
    const auto& key = (*batch.keys)[batch.first + i];
    const auto& parent = (*batch.parents)[batch.first + i];
    moved.push_back(is_writer_of(key));
    if (!moved.back())
      continue;
    for (auto k = size_t{0}; k < masks.size(); ++k)
      writes.push_back(
        {object_key(key, masks[k]), parent == no_parent ? parent : object_key(parent, masks[k]),
         parts_of<const std::byte>((*batch.host_pages)[batch.host_first + i], options->groups[k]),
         batch.tenant});
  }
  auto promise = self->make_response_promise<storage_outcome>();
  queue->submit_set(std::move(writes), options->clock->now() + timeout,
                    await({promise, std::move(moved)}));
  return promise;
}

caf::result<storage_outcome> storage_state::remove(const storage_batch& batch,
                                                   caf::timespan timeout) {
  auto promise = self->make_response_promise<storage_outcome>();
  queue->submit_remove(object_names(batch), options->clock->now() + timeout,
                       await({promise, std::vector<bool>(batch.count, true)}));
  return promise;
}

void storage_state::finish(const storage_completion& completion) {
  if (auto node = counting.extract(completion.ticket)) {
    const auto missing = first_failure(completion.objects.begin(), completion.objects.end());
    const auto objects = static_cast<uint64_t>(missing - completion.objects.begin());
    node.mapped().deliver(objects / options->groups.size());
  } else if (auto move = moving.extract(completion.ticket)) {
    auto& [promise, moved] = move.mapped();
    promise.deliver(outcome_of(moved, completion.objects, options->groups.size()));
  }
}

// -- internal steps -----------------------------------------------------------

std::vector<page_key> storage_state::object_names(const storage_batch& batch) const {
  auto names = std::vector<page_key>{};
  names.reserve(batch.count * options->groups.size());
  for (auto i = uint64_t{0}; i < batch.count; ++i)
    for (const auto& mask : masks)
      names.push_back(object_key((*batch.keys)[batch.first + i], mask));
  return names;
}

template <class Byte>
std::vector<std::span<Byte>> storage_state::parts_of(page_index page,
                                                     const head_group& group) const {
  const auto runs = options->host_geometry.object_runs(page, group.heads);
  auto parts = std::vector<std::span<Byte>>{};
  parts.reserve(runs.size());
  for (const auto& run : runs)
    parts.emplace_back(options->host_memory + run.offset, run.length);
  return parts;
}

bool storage_state::is_writer_of(const page_key& page) const {
  const auto& writers = options->writers;
  return writer_of(page, writers.ranks) == writers.rank;
}

storage_queue::pages_callback storage_state::await(open_move move) {
  const auto ticket = ++last_ticket;
  moving.emplace(ticket, std::move(move));
  return [me = storage_actor{self}, ticket](const std::vector<result<void>>& outcome) {
    auto codes = std::vector<ec>{};
    codes.reserve(outcome.size());
    for (const auto& object : outcome)
      codes.push_back(object ? ec::none : object.error().code);
    caf::anon_send(me, atom::done_v, storage_completion{ticket, std::move(codes)});
  };
}

// -- actor --------------------------------------------------------------------

storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options,
                                     std::unique_ptr<storage_queue> queue) {
  HICACHE_CHECK(queue != nullptr && options.host_memory != nullptr && options.clock != nullptr);
  HICACHE_CHECK(!options.groups.empty() && options.writers.rank < options.writers.ranks);
  for (const auto& group : options.groups)
    self->state.masks.push_back(object_mask(options.fingerprint, group.name));
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
