#include "actors/copier.hpp"

#include "backends/segment_memory.hpp"
#include "base/check.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>

#include <utility>

namespace hicache {

caf::result<page_totals> copier_state::copy(const page_copies& pages, const segment_actor& into) {
  auto promise = self->make_response_promise<page_totals>();
  auto wanted = segment_pages{};
  for (const auto& copied : pages.pages)
    wanted.list.push_back(
      {copied.page.key, copied.parent, copied.page.length, copied.fingerprint, copied.tenant});
  const auto on_error = [promise](caf::error& err) mutable { promise.deliver(std::move(err)); };
  auto on_slots = [this, promise, on_error, pages, into](const segment_slots& slots) mutable {
    auto [totals, complete, failed] = fill(pages, slots);
    self->send(into, atom::abort_v, std::move(failed));
    auto on_published = [promise, pages, into, totals = totals](atom::ok) mutable {
      for (const auto& copied : pages.pages)
        if (copied.pin != 0)
          caf::anon_send(into, atom::pin_v,
                         page_pins{copied.pin, copied.pin_ttl_ms, {copied.page.key}});
      promise.deliver(totals);
    };
    self->request(into, caf::infinite, atom::publish_v, std::move(complete))
      .then(on_published, on_error);
  };
  self->request(into, caf::infinite, atom::reserve_v, std::move(wanted)).then(on_slots, on_error);
  return promise;
}

copier_state::filled copier_state::fill(const page_copies& pages, const segment_slots& slots) {
  auto end = filled{};
  const auto count = [&end](const segment_slot& slot) {
    ++end.totals.pages;
    end.totals.bytes += slot_bytes_for(slot.length);
  };
  auto targets = std::vector<std::span<std::byte>>(slots.list.size());
  auto replicas = std::vector<replica>(slots.list.size());
  auto reads = std::vector<page_search>{};
  auto reserved = std::vector<segment_slot>{};
  for (auto i = size_t{0}; i < slots.list.size(); ++i) {
    const auto& slot = slots.list[i];
    if (slot.what == segment_slot::state::present)
      count(slot);
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
      continue;
    }
    seal_slot(options.memory, reserved[k], reads[k].fingerprint, outcome[k]->checksum);
    end.complete.list.push_back(reserved[k]);
    count(reserved[k]);
  }
  return end;
}

// -- actor --------------------------------------------------------------------

copier_actor::behavior_type copier(copier_actor::stateful_pointer<copier_state> self,
                                   copier_options options) {
  HICACHE_CHECK(!options.memory.empty() && options.timeout.count() > 0);
  self->state.reader = std::make_unique<page_reader>(options.reader);
  self->state.options = std::move(options);
  return {[self](atom::copy, const page_copies& pages, const caf::strong_actor_ptr& into) {
    return self->state.copy(pages, caf::actor_cast<segment_actor>(into));
  }};
}

} // namespace hicache
