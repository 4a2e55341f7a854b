#include "actors/replicator.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"

#include <caf/actor_cast.hpp>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

page_totals totals_of(const page_copies& pages, std::vector<page_key> left_out) {
  auto totals = page_totals{};
  for (const auto& copied : pages.pages)
    if (std::ranges::find(left_out, copied.page.key) == left_out.end()) {
      ++totals.pages;
      totals.bytes += slot_bytes_for(copied.page.length);
    }
  totals.left_out = std::move(left_out);
  return totals;
}

} // namespace

caf::result<page_totals> replicator_state::copy(const page_copies& pages,
                                                const segment_actor& into) {
  auto promise = self->make_response_promise<page_totals>();
  auto wanted = segment_pages{};
  for (const auto& copied : pages.pages)
    wanted.list.push_back({copied.page.key, copied.parent, copied.page.length, copied.fingerprint,
                           copied.tenant, copied.copies});
  const auto on_error = [promise](caf::error& err) mutable { promise.deliver(std::move(err)); };
  auto on_slots = [this, promise, on_error, pages, into](const segment_slots& slots) mutable {
    auto [complete, failed, left_out] = fill(pages, slots);
    self->send(into, atom::abort_v, std::move(failed));
    auto on_published = [this, promise, pages, into,
                         left_out = std::move(left_out)](const key_batch& refused) mutable {
      left_out.insert(left_out.end(), refused.keys.begin(), refused.keys.end());
      pin(pages, into, std::move(left_out), promise);
    };
    self->request(into, caf::infinite, atom::publish_v, std::move(complete))
      .then(std::move(on_published), on_error);
  };
  self->request(into, caf::infinite, atom::reserve_v, std::move(wanted)).then(on_slots, on_error);
  return promise;
}

void replicator_state::pin(const page_copies& pages, const segment_actor& into,
                           std::vector<page_key> left_out,
                           caf::typed_response_promise<page_totals> promise) {
  auto unpinned = std::make_shared<std::vector<page_key>>(std::move(left_out));
  // Replies when the last request releases it.
  const auto end = std::shared_ptr<void>{nullptr, [promise, pages, unpinned](void*) mutable {
                                           promise.deliver(totals_of(pages, std::move(*unpinned)));
                                         }};
  const auto there = *unpinned;
  for (const auto& copied : pages.pages) {
    const auto& key = copied.page.key;
    if (copied.pin == 0 || std::ranges::find(there, key) != there.end())
      continue;
    auto on_pinned = [unpinned, end](const page_totals& done) {
      unpinned->insert(unpinned->end(), done.left_out.begin(), done.left_out.end());
    };
    auto on_error = [unpinned, end, key](const caf::error&) { unpinned->push_back(key); };
    self->request(into, caf::infinite, atom::pin_v, page_pins{copied.pin, copied.pin_ttl_ms, {key}})
      .then(std::move(on_pinned), std::move(on_error));
  }
}

replicator_state::filled replicator_state::fill(const page_copies& pages,
                                                const segment_slots& slots) {
  auto end = filled{};
  auto targets = std::vector<std::span<std::byte>>(slots.list.size());
  auto replicas = std::vector<replica>(slots.list.size());
  auto reads = std::vector<page_search>{};
  auto reserved = std::vector<segment_slot>{};
  for (auto i = size_t{0}; i < slots.list.size(); ++i) {
    const auto& slot = slots.list[i];
    if (slot.what == segment_slot::state::full)
      end.left_out.push_back(slot.key);
    if (slot.what != segment_slot::state::reserved)
      continue;
    const auto& copied = pages.pages[i];
    targets[i] = object_of(options.memory, slot);
    replicas[i] = {pages.source, copied.page.offset, copied.page.generation, slot.length};
    reads.push_back({slot.key, copied.fingerprint, {&replicas[i], 1}, {&targets[i], 1}, true});
    reserved.push_back(slot);
  }
  const auto outcome = reader->read(reads, options.reader.clock->now() + options.timeout);
  for (auto k = size_t{0}; k < reserved.size(); ++k) {
    if (!outcome[k]) {
      end.failed.list.push_back(reserved[k]);
      end.left_out.push_back(reserved[k].key);
      continue;
    }
    seal_slot(options.memory, reserved[k], reads[k].fingerprint, outcome[k]->checksum);
    end.complete.list.push_back(reserved[k]);
  }
  return end;
}

// -- actor --------------------------------------------------------------------

replicator_actor::behavior_type
replicator(replicator_actor::stateful_pointer<replicator_state> self, replicator_options options) {
  HICACHE_CHECK(!options.memory.empty() && options.timeout.count() > 0);
  self->state.reader = std::make_unique<page_reader>(options.reader);
  self->state.options = std::move(options);
  return {[self](atom::copy, const page_copies& pages, const caf::strong_actor_ptr& into) {
    return self->state.copy(pages, caf::actor_cast<segment_actor>(into));
  }};
}

} // namespace hicache
