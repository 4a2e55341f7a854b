#include "actors/tree_outbox.hpp"

#include "base/limits.hpp"
#include "base/overloaded.hpp"
#include "cache/hash/page_names.hpp"
#include "hicache/events.hpp"

#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

void tree_outbox::send(prefix_cache& core, const prefill_watch& prefill, uint32_t page_size) {
  if (auto effects = core.take_effects(); !effects.empty())
    send_effects(std::move(effects), prefill, page_size);
  if (auto changes = core.take_changes(); !changes.empty())
    send_events(std::move(changes));
  if (!notes_.empty())
    send_notes();
}

void tree_outbox::send_effects(std::vector<tree_effect> effects, const prefill_watch& prefill,
                               uint32_t page_size) {
  auto copies = copy_batch{};
  for (auto& effect : effects)
    std::visit(
      overloaded{
        [&](write_command& x) { copies.writes.push_back(std::move(x)); },
        [&](load_command& x) { copies.loads.push_back(std::move(x)); },
        [&](backup_command& x) { self_->send(helpers_.backup, atom::backup_v, std::move(x)); },
        [&](drop_command& x) { self_->send(helpers_.backup, atom::drop_v, x); },
        [&](fetch_command& x) {
          x.page_compute_time = prefill.page_time(x.first, x.names->size(), page_size);
          self_->send(helpers_.prefetcher, atom::fetch_v, std::move(x));
        },
        [&](terminate_command& x) { self_->send(helpers_.prefetcher, atom::terminate_v, x); },
        [&](staging_command& x) { self_->send(helpers_.prefetcher, atom::stage_v, std::move(x)); },
        [&](reclaim_command& x) { self_->send(helpers_.prefetcher, atom::stage_v, x); },
      },
      effect);
  if (!copies.writes.empty() || !copies.loads.empty())
    self_->send(helpers_.controller, atom::copy_v, std::move(copies));
}

void tree_outbox::send_events(std::vector<cache_change> changes) {
  auto list = [changes = std::move(changes)] { return name_events(changes); };
  const auto events
    = std::make_shared<const cache_events>(cache_events{std::move(list), event_batches_++});
  if (helpers_.engine)
    self_->send(helpers_.engine, atom::events_v, cache_events_ptr{events});
  if (!helpers_.publisher || unpublished_ == limits::unpublished_batches)
    return;
  ++unpublished_;
  self_->request(helpers_.publisher, caf::infinite, atom::events_v, cache_events_ptr{events})
    .then([this](atom::ok) { --unpublished_; },
          [this](const caf::error&) { helpers_.publisher = nullptr; }); // It ends with the tree.
}

void tree_outbox::send_notes() {
  auto batch = std::make_shared<const op_log_batch>(op_log_batch{std::exchange(notes_, {})});
  if (unrecorded_ == limits::unrecorded_batches) {
    spdlog::error("the op log ends here: the disk is too slow");
    helpers_.recorder = nullptr;
    return;
  }
  ++unrecorded_;
  auto on_ok = [this](atom::ok) { --unrecorded_; };
  // The recorder has logged the reason.
  auto on_error = [this](const caf::error&) { helpers_.recorder = nullptr; };
  self_
    ->request(helpers_.recorder, caf::infinite, atom::record_v, op_log_batch_ptr{std::move(batch)})
    .then(on_ok, on_error);
}

} // namespace hicache
