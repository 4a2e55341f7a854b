// Copies of objects between the tiers of a tiered store, and what becomes of objects that a tier
// evicts.

#include "backends/tiered/tier_batches.hpp"
#include "backends/tiered/tiered_core.hpp"
#include "base/check.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace hicache {

namespace {

using rule = tier_writes::rule;

/// Whether an object that one tier had is copied to another one. What is lossy must not pass for
/// lossless where others, or a later process, find it.
bool is_copied(const tier_order& tiers, size_t from, size_t to, uint32_t uses) {
  const auto& target = tiers[to]->capabilities;
  const auto would_pass = tiers[from]->capabilities.is_lossy && !target.is_lossy
                          && (target.is_shared || target.survives_restarts);
  return to != from && !would_pass && is_copied(tiers[to]->rules, uses, to < from);
}

} // namespace

std::vector<uint32_t> tiered_core::count_uses(std::span<const page_read> objects) {
  auto uses = std::vector<uint32_t>{};
  uses.reserve(objects.size());
  const auto lock = std::scoped_lock{mutex_};
  for (const auto& object : objects)
    uses.push_back(history_.use(object.key));
  return uses;
}

bool tiered_core::has_copies(const tier_order& tiers, size_t from, uint32_t uses) noexcept {
  for (auto to = size_t{0}; to < tiers.size(); ++to)
    if (is_copied(tiers, from, to, uses))
      return true;
  return false;
}

void tiered_core::copy(const tier_order& tiers, const page_read& object, size_t from, uint32_t uses,
                       std::vector<tier_copies>& copies) {
  const auto bytes = total_bytes(object.parts);
  for (auto to = size_t{0}; to < tiers.size(); ++to) {
    if (!is_copied(tiers, from, to, uses) || !take_copy(*tiers[to], bytes))
      continue;
    auto own = std::vector<std::byte>(bytes);
    gather(object.parts, own.data());
    copies[to].are_promoted = to < from;
    copies[to].bytes += bytes;
    copies[to].objects.push_back(
      {object.key, object.parent, object.tenant, object.fingerprint, std::move(own)});
  }
}

bool tiered_core::watch_losses(storage_backend::loss_watch watch) {
  losses_ = std::move(watch);
  return arrange_losses(tiers_);
}

bool tiered_core::arrange_losses(const tier_order& tiers) {
  const auto last = std::find_if(tiers.rbegin(), tiers.rend(), [](const auto& x) {
    return x->takes(rule::all) || x->takes(rule::evict);
  });
  auto tells = false;
  for (auto at = tiers.rbegin(); at != tiers.rend(); ++at) {
    const auto told
      = (*at)->store->watch_losses(at == last ? losses_ : storage_backend::loss_watch{});
    tells |= at == last && told;
  }
  return tells;
}

void tiered_core::take_evicted(uint64_t from, std::span<const evicted_object> objects) {
  const auto tiers = order();
  const auto above = std::ranges::find(*tiers, from, &tier_state::id);
  const auto is_demoted = tiers->end() - above >= 2 && (*(above + 1))->takes(rule::evict);
  const auto to = static_cast<size_t>(above - tiers->begin()) + 1;
  auto copies = std::vector<tier_copies>(tiers->size());
  auto dropped = std::vector<page_key>{};
  auto lost = time_point{};
  for (const auto& object : objects) {
    if (!is_demoted || object.bytes.empty() || !take_copy(*(*tiers)[to], object.bytes.size())) {
      dropped.push_back(object.key);
      lost = std::max(lost, object.used);
      continue;
    }
    copies[to].bytes += object.bytes.size();
    copies[to].objects.push_back({object.key,
                                  object.parent,
                                  object.tenant,
                                  object.fingerprint,
                                  {object.bytes.begin(), object.bytes.end()}});
  }
  if (is_demoted && losses_ && lost > time_point{})
    losses_(lost);
  write_copies(*tiers, std::move(copies));
  tell_gone(std::move(dropped));
}

bool tiered_core::watch_evictions(storage_backend::eviction_watch watch) {
  evictions_ = std::move(watch);
  HICACHE_CHECK(arrange(tiers_));
  return tells_evictions_;
}

void tiered_core::tell_gone(std::vector<page_key> keys) {
  if (!evictions_ || keys.empty())
    return;
  auto tell = [self = shared_from_this(), keys](const auto& places) {
    auto gone = std::vector<evicted_object>{};
    for (auto i = size_t{0}; i < keys.size(); ++i)
      if (!places[i] && places[i].error().code == ec::not_found)
        gone.push_back({keys[i], {}, {}});
    if (!gone.empty())
      self->evictions_(gone);
  };
  submit(std::make_shared<tier_lookup>(std::move(keys), clock_.now() + copy_time_, std::move(tell)),
         beginner::worker);
}

bool tiered_core::take_copy(tier_state& to, uint64_t bytes) {
  const auto lock = std::scoped_lock{mutex_};
  if (is_closing_ || to.is_suspended || copying_bytes_ + bytes > copy_bytes_
      || to.writes.state() != breaker_state::closed)
    return false;
  if (!to.budget.take(bytes, clock_.now())) {
    ++to.over_budget;
    return false;
  }
  copying_bytes_ += bytes;
  ++to.running;
  return true;
}

void tiered_core::write_copies(const tier_order& tiers, std::vector<tier_copies> copies) {
  for (auto to = size_t{0}; to < copies.size(); ++to) {
    if (copies[to].objects.empty())
      continue;
    const auto kept = std::make_shared<const tier_copies>(std::move(copies[to]));
    auto writes = std::vector<page_write>{};
    for (const auto& object : kept->objects)
      writes.push_back(
        {object.key, object.parent, {std::span{object.bytes}}, object.tenant, object.fingerprint});
    auto done = [self = shared_from_this(), tier = tiers[to], kept](const auto& outcomes) {
      {
        const auto lock = std::scoped_lock{self->mutex_};
        self->copying_bytes_ -= kept->bytes;
        self->end_calls(*tier, kept->objects.size());
      }
      auto dropped = std::vector<page_key>{};
      auto failed = uint64_t{0};
      for (auto i = size_t{0}; i < outcomes.size(); ++i)
        if (const auto& object = kept->objects[i]; !outcomes[i]) {
          dropped.push_back(object.key);
          failed += object.bytes.size();
        }
      self->end_write(*tier, kept->bytes - failed, failed);
      self->tell_gone(std::move(dropped));
    };
    auto& store = *tiers[to]->store;
    const auto deadline = clock_.now() + copy_time_;
    if (kept->are_promoted)
      store.promote(std::move(writes), deadline, std::move(done));
    else
      store.write(std::move(writes), deadline, std::move(done));
  }
}

size_t tiered_core::take_budget(tier_state& tier, std::span<const page_write> objects) {
  const auto lock = std::scoped_lock{mutex_};
  const auto now = clock_.now();
  const auto over = std::ranges::find_if(
    objects, [&](const page_write& x) { return !tier.budget.take(total_bytes(x.parts), now); });
  tier.over_budget += static_cast<uint64_t>(objects.end() - over);
  return static_cast<size_t>(over - objects.begin());
}

void tiered_core::end_write(tier_state& tier, uint64_t stored, uint64_t failed) {
  const auto lock = std::scoped_lock{mutex_};
  tier.written_bytes += stored;
  tier.budget.give_back(failed);
}

} // namespace hicache
