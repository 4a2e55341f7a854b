#include "backends/tiered/tiered_core.hpp"

#include "base/limits.hpp"

#include <algorithm>
#include <exception>
#include <string>

namespace hicache {

namespace {

bool is_read(store_call kind) {
  return kind == store_call::exists || kind == store_call::get;
}

/// Exception boundary of a batch's list.
std::optional<error> list(tier_batch& batch) {
  try {
    batch.list();
    return std::nullopt;
  } catch (const std::exception& thrown) {
    return error{ec::io_failure, std::string{"a batch threw: "} + thrown.what()};
  } catch (...) {
    return error{ec::io_failure, "a batch threw an unknown exception"};
  }
}

} // namespace

tiered_core::tiered_core(tiered_options options, const clock_source& clock)
  : looks_up_in_parallel_(options.looks_up_in_parallel), copy_bytes_(options.copy_bytes),
    copy_time_(options.copy_time), notice_(std::move(options.notice)), clock_(clock),
    history_(limits::tier_history) {
  for (auto& [store, rules] : options.tiers) {
    const auto breaker = store_breaker{options.breaker};
    const auto budget = byte_budget{rules.bytes_per_second, rules.bytes_per_day};
    tiers_.push_back({std::move(store), rules, breaker, breaker, budget});
  }
}

// -- batches --------------------------------------------------------------------

tiered_core::batch_number tiered_core::submit(const batch_ptr& batch) {
  auto why = std::optional<error>{};
  {
    const auto lock = std::scoped_lock{mutex_};
    batch->number = ++last_number_;
    if (is_closing_)
      why = error{ec::stopping, {}};
    else if (waiting_.size() >= limits::storage_queue_batches)
      why = error{ec::limit_reached, "too many batches wait"};
    else {
      batches_.emplace(batch->number, batch);
      waiting_.push_back(batch);
    }
  }
  if (why)
    batch->refuse(*why);
  else
    changed_.notify_one();
  return batch->number;
}

void tiered_core::work() {
  auto lock = std::unique_lock{mutex_};
  while (true) {
    changed_.wait(lock, [this] { return is_closing_ || !waiting_.empty(); });
    if (waiting_.empty())
      return;
    const auto batch = std::move(waiting_.front());
    waiting_.pop_front();
    // An expired one has been withdrawn.
    if (!batches_.contains(batch->number))
      continue;
    batch->has_begun = true;
    ++batch->open;
    lock.unlock();
    if (const auto failure = list(*batch)) {
      lock.lock();
      batches_.erase(batch->number);
      lock.unlock();
      batch->refuse(*failure);
    } else {
      batch->begin(*this);
      release(batch);
    }
    lock.lock();
  }
}

tiered_core::expiry tiered_core::expire(batch_number number) {
  auto lock = std::unique_lock{mutex_};
  const auto found = batches_.find(number);
  if (found == batches_.end())
    return expiry::finished;
  const auto batch = found->second;
  if (!batch->has_begun) {
    batches_.erase(found);
    return expiry::withdrawn;
  }
  batch->is_expired = true;
  ++batch->open; // Keeps a call that ends meanwhile from answering.
  auto known = std::vector<uint64_t>{};
  for (const auto& [serial, call] : batch->calls)
    if (call.number != 0 && !call.is_late)
      known.push_back(serial);
  lock.unlock();
  for (const auto serial : known)
    if (expire_call(batch, serial))
      release(batch);
  lock.lock();
  if (--batch->open > 0)
    return expiry::running;
  batches_.erase(batch->number);
  if (!batch->has_outcome)
    return expiry::withdrawn;
  lock.unlock();
  batch->answer(*this);
  return expiry::finished;
}

void tiered_core::release(const batch_ptr& batch) {
  {
    const auto lock = std::scoped_lock{mutex_};
    if (--batch->open > 0)
      return;
    batches_.erase(batch->number);
  }
  batch->answer(*this);
}

bool tiered_core::close(std::chrono::nanoseconds grace) {
  auto waiting = std::deque<batch_ptr>{};
  {
    const auto lock = std::scoped_lock{mutex_};
    is_closing_ = true;
    waiting.swap(waiting_);
    std::erase_if(waiting, [this](const batch_ptr& x) { return batches_.erase(x->number) == 0; });
  }
  changed_.notify_all();
  for (const auto& batch : waiting)
    batch->refuse({ec::stopping, {}});
  auto all = true;
  const auto end = std::chrono::steady_clock::now() + grace;
  for (auto& tier : tiers_) {
    const auto left = end - std::chrono::steady_clock::now();
    all = tier.store->close(std::max<std::chrono::nanoseconds>(left, {})) && all;
  }
  return all;
}

// -- calls of a batch -------------------------------------------------------------

std::optional<store_breaker::pass> tiered_core::admit(size_t tier, store_call kind) {
  auto pass = std::optional<store_breaker::pass>{};
  auto said = std::string{};
  {
    const auto lock = std::scoped_lock{mutex_};
    said = with_breaker(tier, kind,
                        [&](store_breaker& breaker) { pass = breaker.admit(clock_.now()); });
  }
  notify(said);
  return pass;
}

bool tiered_core::is_expired(const batch_ptr& batch) {
  const auto lock = std::scoped_lock{mutex_};
  return batch->is_expired;
}

void tiered_core::note(const batch_ptr& batch, uint64_t serial, batch_number number) {
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto call = batch->calls.find(serial);
    if (call == batch->calls.end())
      return;
    call->second.number = number;
    if (!batch->is_expired)
      return;
  }
  if (expire_call(batch, serial))
    release(batch);
}

bool tiered_core::expire_call(const batch_ptr& batch, uint64_t serial) {
  auto tier = size_t{0};
  auto number = batch_number{0};
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto call = batch->calls.find(serial);
    if (call == batch->calls.end())
      return false;
    tier = call->second.tier;
    number = call->second.number;
  }
  const auto fate = store(tier).expire(number);
  auto said = std::string{};
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto at = batch->calls.find(serial);
    if (fate == expiry::finished || at == batch->calls.end())
      return false;
    auto& call = at->second;
    const auto now = clock_.now();
    const auto is_running = fate == expiry::running;
    tiers_[tier].late += is_running ? 1 : 0;
    said = with_breaker(tier, call.kind, [&](store_breaker& breaker) {
      breaker.failed(call.kind, call.pass, breaker_cause::late, now);
      breaker.set_stuck(tiers_[tier].late, now);
    });
    if (is_running)
      call.is_late = true;
    else
      batch->calls.erase(at);
  }
  notify(said);
  return fate == expiry::withdrawn;
}

void tiered_core::finish(const batch_ptr& batch, uint64_t serial, ec failure) {
  auto said = std::string{};
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto call = batch->calls.extract(serial).mapped();
    const auto now = clock_.now();
    batch->has_outcome = true;
    if (call.is_late)
      --tiers_[call.tier].late;
    said = with_breaker(call.tier, call.kind, [&](store_breaker& breaker) {
      if (call.is_late)
        breaker.set_stuck(tiers_[call.tier].late, now);
      else if (failure == ec::none)
        breaker.succeeded(call.kind, call.pass, now);
      else
        breaker.failed(
          call.kind, call.pass,
          failure == ec::deadline_exceeded ? breaker_cause::late : breaker_cause::failing, now);
    });
  }
  notify(said);
}

std::string tiered_core::with_breaker(size_t tier, store_call kind,
                                      const std::function<void(store_breaker&)>& change) {
  auto& breaker = is_read(kind) ? tiers_[tier].reads : tiers_[tier].writes;
  const auto before = breaker.state();
  change(breaker);
  const auto after = breaker.state();
  const auto what = std::string{is_read(kind) ? "reads of" : "writes to"} + " tier "
                    + std::to_string(tier + 1) + " of L3 (" + tiers_[tier].store->name() + ")";
  if (after == before)
    return {};
  if (after == breaker_state::closed)
    return what + " work again";
  return before == breaker_state::closed
           ? what + " are left out for a while: " + to_string(breaker.cause())
           : std::string{};
}

void tiered_core::notify(const std::string& sentence) const {
  if (!sentence.empty() && notice_)
    notice_(sentence);
}

// -- copies -----------------------------------------------------------------------

std::vector<uint32_t> tiered_core::count_uses(std::span<const page_read> objects) {
  auto uses = std::vector<uint32_t>{};
  uses.reserve(objects.size());
  const auto lock = std::scoped_lock{mutex_};
  for (const auto& object : objects)
    uses.push_back(history_.use(object.key));
  return uses;
}

bool tiered_core::has_copies(size_t from, uint32_t uses) const noexcept {
  for (auto to = size_t{0}; to < tiers_.size(); ++to)
    if (to != from && is_copied(rules(to), uses, to < from))
      return true;
  return false;
}

void tiered_core::copy(const page_read& object, size_t from, uint32_t uses,
                       std::vector<tier_copies>& copies) {
  const auto bytes = total_bytes(object.parts);
  for (auto to = size_t{0}; to < tiers_.size(); ++to) {
    if (to == from || !is_copied(rules(to), uses, to < from))
      continue;
    if (!take_copy(to, bytes))
      continue;
    auto own = std::vector<std::byte>(bytes);
    gather(object.parts, own.data());
    copies[to].bytes += bytes;
    copies[to].objects.push_back({object.key, object.parent, object.tenant, std::move(own)});
  }
}

void tiered_core::demote(size_t to, std::span<const evicted_object> objects) {
  auto copies = std::vector<tier_copies>(tiers_.size());
  for (const auto& each : objects) {
    const auto bytes = each.bytes;
    if (!take_copy(to, bytes.size()))
      continue;
    copies[to].bytes += bytes.size();
    copies[to].objects.push_back({each.key, each.parent, 0, {bytes.begin(), bytes.end()}});
  }
  write_copies(std::move(copies));
}

bool tiered_core::take_copy(size_t to, uint64_t bytes) {
  const auto lock = std::scoped_lock{mutex_};
  if (is_closing_ || copying_bytes_ + bytes > copy_bytes_
      || tiers_[to].writes.state() != breaker_state::closed
      || !tiers_[to].budget.take(bytes, clock_.now()))
    return false;
  copying_bytes_ += bytes;
  return true;
}

void tiered_core::write_copies(std::vector<tier_copies> copies) {
  for (auto to = size_t{0}; to < copies.size(); ++to) {
    if (copies[to].objects.empty())
      continue;
    const auto kept = std::make_shared<const tier_copies>(std::move(copies[to]));
    auto writes = std::vector<page_write>{};
    for (const auto& object : kept->objects)
      writes.push_back({object.key, object.parent, {std::span{object.bytes}}, object.tenant});
    store(to).write(std::move(writes), clock_.now() + copy_time_,
                    [self = shared_from_this(), kept](const auto&) {
                      const auto lock = std::scoped_lock{self->mutex_};
                      self->copying_bytes_ -= kept->bytes;
                    });
  }
}

size_t tiered_core::take_budget(size_t tier, std::span<const page_write> objects) {
  const auto lock = std::scoped_lock{mutex_};
  const auto now = clock_.now();
  const auto over = std::ranges::find_if(objects, [&](const page_write& x) {
    return !tiers_[tier].budget.take(total_bytes(x.parts), now);
  });
  return static_cast<size_t>(over - objects.begin());
}

// -- figures ----------------------------------------------------------------------

void tiered_core::count(const std::vector<result<void>>& outcomes, bool is_read) {
  const auto lock = std::scoped_lock{mutex_};
  for (const auto& outcome : outcomes)
    if (is_read)
      counters_.count_get(outcome);
    else
      counters_.count_set(outcome);
}

backend_health tiered_core::sum_of(std::vector<backend_health> tiers) {
  auto sum = backend_health{};
  sum.ok = false;
  auto is_bounded = true;
  const auto lock = std::scoped_lock{mutex_};
  for (auto i = size_t{0}; i < tiers.size(); ++i) {
    auto& tier = tiers[i];
    for (const auto* breaker : {&tiers_[i].reads, &tiers_[i].writes})
      if (tier.ok && breaker->state() != breaker_state::closed) {
        tier.ok = false;
        tier.detail = std::string{breaker == &tiers_[i].reads ? "reads" : "writes"}
                      + " are left out: " + to_string(breaker->cause());
      }
    const auto name = store(i).name();
    if (!tier.ok)
      sum.detail += (sum.detail.empty() ? "" : "; ") + name + ": " + tier.detail;
    sum.ok = sum.ok || tier.ok;
    sum.objects += tier.objects;
    sum.bytes += tier.bytes;
    sum.capacity_bytes += tier.capacity_bytes;
    is_bounded = is_bounded && tier.capacity_bytes > 0;
    sum.counters.evicted += tier.counters.evicted;
    sum.tiers.push_back({name, std::move(tier)});
  }
  if (!is_bounded)
    sum.capacity_bytes = 0;
  sum.counters += counters_;
  return sum;
}

} // namespace hicache
