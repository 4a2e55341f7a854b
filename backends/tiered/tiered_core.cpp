#include "backends/tiered/tiered_core.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <iterator>
#include <string>

namespace hicache {

namespace {

bool is_read(store_call kind) {
  return kind == store_call::exists || kind == store_call::get;
}

using rule = tier_writes::rule;

/// The error of a tier that takes what nobody tells.
tl::unexpected<error> does_not_tell(size_t number) {
  return fail(ec::invalid_argument, "tier " + std::to_string(number)
                                      + " takes what the tier above evicts, but that one does not "
                                        "tell; expected memory, disk or hf3fs there, without fp8");
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

tiered_core::tiered_core(const tiered_options& options, const clock_source& clock)
  : looks_up_in_parallel_(options.looks_up_in_parallel), copy_bytes_(options.copy_bytes),
    copy_time_(options.copy_time), breaker_(options.breaker), notice_(options.notice),
    clock_(clock), order_(std::make_shared<const tier_order>()), history_(limits::tier_history) {}

// -- tiers ----------------------------------------------------------------------

std::shared_ptr<tier_state> tiered_core::make_tier(store_tier from) {
  const auto breaker = store_breaker{breaker_};
  const auto budget = byte_budget{from.rules.bytes_per_second, from.rules.bytes_per_day};
  const auto capabilities = from.store->capabilities();
  return std::make_shared<tier_state>(tier_state{++last_id_, std::move(from.store), capabilities,
                                                 from.rules, breaker, breaker, budget});
}

result<void> tiered_core::open(std::vector<store_tier> tiers) {
  for (auto& tier : tiers)
    tiers_.push_back(make_tier(std::move(tier)));
  HICACHE_TRY(arrange(tiers_));
  update_order();
  return {};
}

std::shared_ptr<const tier_order> tiered_core::order() {
  const auto lock = std::scoped_lock{mutex_};
  return order_;
}

tier_names tiered_core::names() {
  const auto lock = std::scoped_lock{mutex_};
  return names_;
}

result<void> tiered_core::attach_memory(std::span<const std::span<std::byte>> regions) {
  memory_.assign(regions.begin(), regions.end());
  auto first = result<void>{};
  for (const auto& tier : tiers_)
    if (auto attached = tier->store->attach_memory(memory_); !attached && first)
      first = std::move(attached);
  return first;
}

result<void> tiered_core::arrange(const tier_order& tiers) {
  if (tiers.empty() || tiers.size() > limits::storage_tiers)
    return fail(ec::invalid_argument, std::to_string(tiers.size()) + " tiers; expected 1 to "
                                        + std::to_string(limits::storage_tiers));
  if (std::ranges::none_of(tiers, [](const auto& x) { return x->takes(rule::all); }))
    return fail(ec::invalid_argument,
                "no tier takes all writes, so nothing would be stored; expected one to do so");
  if (tiers.front()->takes(rule::evict))
    return does_not_tell(1);
  auto tells = true;
  for (auto i = size_t{0}; i < tiers.size(); ++i) {
    const auto demotes = i + 1 < tiers.size() && tiers[i + 1]->takes(rule::evict);
    auto watch = storage_backend::eviction_watch{};
    if (demotes || evictions_)
      watch = [weak = weak_from_this(), id = tiers[i]->id](auto objects) {
        if (const auto alive = weak.lock())
          alive->take_evicted(id, objects);
      };
    const auto is_told = tiers[i]->store->watch_evictions(watch, demotes);
    if (demotes && !is_told)
      return does_not_tell(i + 2);
    tells = tells && is_told;
  }
  tells_evictions_ = tells;
  static_cast<void>(arrange_losses(tiers));
  return {};
}

void tiered_core::update_order() {
  auto used = tier_order{};
  std::ranges::copy_if(tiers_, std::back_inserter(used),
                       [](const auto& x) { return !x->is_suspended; });
  auto names = std::vector<std::string>{};
  for (const auto& tier : used)
    names.push_back(tier->store->name());
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
  order_ = std::make_shared<const tier_order>(std::move(used));
}

result<void> tiered_core::add(store_tier tier, size_t at) {
  auto wanted = tiers_;
  const auto& fresh
    = *wanted.insert(wanted.begin() + static_cast<ptrdiff_t>(at), make_tier(std::move(tier)));
  fresh->is_suspended = true;
  if (auto arranged = arrange(wanted); !arranged) {
    HICACHE_CHECK(arrange(tiers_));
    return arranged;
  }
  if (const auto attached = fresh->store->attach_memory(memory_); !attached)
    notify("tier " + std::to_string(at + 1) + " of L3 (" + fresh->store->name()
           + ") does not register L2: " + to_string(attached.error()));
  const auto lock = std::scoped_lock{mutex_};
  tiers_ = std::move(wanted);
  return {};
}

result<void> tiered_core::suspend(size_t at, std::chrono::nanoseconds time) {
  auto others = tiers_;
  others.erase(others.begin() + static_cast<ptrdiff_t>(at));
  if (auto arranged = arrange(others); !arranged) {
    HICACHE_CHECK(arrange(tiers_));
    return arranged;
  }
  auto& tier = *tiers_[at];
  auto lock = std::unique_lock{mutex_};
  tier.is_suspended = true;
  update_order();
  if (idle_.wait_for(lock, time, [&] { return tier.running == 0; }))
    return {};
  lock.unlock();
  resume(at);
  return fail(ec::deadline_exceeded, "calls of tier " + std::to_string(at + 1) + " ("
                                       + tier.store->name() + ") are still under way");
}

void tiered_core::resume(size_t at) {
  HICACHE_CHECK(arrange(tiers_));
  const auto lock = std::scoped_lock{mutex_};
  tiers_[at]->is_suspended = false;
  update_order();
}

bool tiered_core::remove(size_t at, std::chrono::nanoseconds grace) {
  const auto gone = tiers_[at];
  {
    const auto lock = std::scoped_lock{mutex_};
    HICACHE_CHECK(gone->is_suspended && gone->running == 0);
    tiers_.erase(tiers_.begin() + static_cast<ptrdiff_t>(at));
  }
  HICACHE_CHECK(arrange(tiers_));
  const auto told = std::make_shared<std::promise<backend_health>>();
  gone->store->health([told](backend_health x) { told->set_value(std::move(x)); });
  if (auto health = told->get_future(); health.wait_for(grace) == std::future_status::ready) {
    const auto lock = std::scoped_lock{mutex_};
    counters_.evicted += health.get().counters.evicted;
  }
  return gone->store->close(grace);
}

bool tiered_core::is_shared_without(size_t at) {
  for (auto i = size_t{0}; i < tiers_.size(); ++i)
    if (i != at && tiers_[i]->takes(rule::all) && tiers_[i]->store->capabilities().is_shared)
      return true;
  return false;
}

// -- batches --------------------------------------------------------------------

tiered_core::batch_number tiered_core::submit(const batch_ptr& batch, beginner who) {
  auto why = std::optional<error>{};
  auto begins_here = false;
  {
    const auto lock = std::scoped_lock{mutex_};
    batch->number = ++last_number_;
    if (is_closing_)
      why = error{ec::stopping, {}};
    else if (waiting_.size() >= limits::storage_queue_batches)
      why = error{ec::limit_reached, "too many batches wait"};
    else {
      batches_.emplace(batch->number, batch);
      begins_here
        = who == beginner::submitter && order_->size() == 1 && !batch->needs_list(*order_->front());
      if (begins_here)
        start(*batch);
      else
        waiting_.push_back(batch);
    }
  }
  if (why) {
    batch->refuse(*why);
  } else if (begins_here) {
    batch->begin(*this);
    release(batch);
  } else {
    changed_.notify_one();
  }
  return batch->number;
}

void tiered_core::start(tier_batch& batch) {
  batch.has_begun = true;
  batch.tiers = order_;
  ++batch.open;
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
    start(*batch);
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
  auto tiers = tier_order{};
  {
    const auto lock = std::scoped_lock{mutex_};
    is_closing_ = true;
    tiers = tiers_;
    waiting.swap(waiting_);
    std::erase_if(waiting, [this](const batch_ptr& x) { return batches_.erase(x->number) == 0; });
  }
  changed_.notify_all();
  for (const auto& batch : waiting)
    batch->refuse({ec::stopping, {}});
  auto all = true;
  const auto end = std::chrono::steady_clock::now() + grace;
  for (const auto& tier : tiers) {
    const auto left = end - std::chrono::steady_clock::now();
    all = tier->store->close(std::max<std::chrono::nanoseconds>(left, {})) && all;
  }
  return all;
}

// -- calls of a batch -------------------------------------------------------------

std::optional<store_breaker::pass> tiered_core::admit(tier_state& tier, store_call kind) {
  auto pass = std::optional<store_breaker::pass>{};
  auto said = std::string{};
  {
    const auto lock = std::scoped_lock{mutex_};
    if (tier.is_suspended)
      return std::nullopt;
    said = with_breaker(tier, kind,
                        [&](store_breaker& breaker) { pass = breaker.admit(clock_.now()); });
    tier.running += pass ? 1 : 0;
  }
  notify(said);
  return pass;
}

void tiered_core::end_calls(tier_state& tier, size_t calls) {
  tier.running -= calls;
  if (tier.is_suspended && tier.running == 0)
    idle_.notify_all();
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
  auto tier = std::shared_ptr<tier_state>{};
  auto number = batch_number{0};
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto call = batch->calls.find(serial);
    if (call == batch->calls.end())
      return false;
    tier = (*batch->tiers)[call->second.tier];
    number = call->second.number;
  }
  const auto fate = tier->store->expire(number);
  auto said = std::string{};
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto at = batch->calls.find(serial);
    if (fate == expiry::finished || at == batch->calls.end())
      return false;
    auto& call = at->second;
    const auto now = clock_.now();
    const auto is_running = fate == expiry::running;
    tier->late += is_running ? 1 : 0;
    said = with_breaker(*tier, call.kind, [&](store_breaker& breaker) {
      breaker.failed(call.kind, call.pass, breaker_cause::late, now);
      breaker.set_stuck(tier->late, now);
    });
    if (is_running) {
      call.is_late = true;
    } else {
      batch->calls.erase(at);
      end_calls(*tier, 1);
    }
  }
  notify(said);
  return fate == expiry::withdrawn;
}

void tiered_core::finish(const batch_ptr& batch, uint64_t serial, ec failure) {
  auto said = std::string{};
  {
    const auto lock = std::scoped_lock{mutex_};
    const auto call = batch->calls.extract(serial).mapped();
    auto& tier = *(*batch->tiers)[call.tier];
    const auto now = clock_.now();
    batch->has_outcome = true;
    end_calls(tier, 1);
    if (call.is_late)
      --tier.late;
    said = with_breaker(tier, call.kind, [&](store_breaker& breaker) {
      if (call.is_late)
        breaker.set_stuck(tier.late, now);
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

std::string tiered_core::with_breaker(tier_state& tier, store_call kind,
                                      const std::function<void(store_breaker&)>& change) {
  auto& breaker = is_read(kind) ? tier.reads : tier.writes;
  const auto before = breaker.state();
  change(breaker);
  const auto after = breaker.state();
  if (after == before)
    return {};
  const auto at = std::ranges::find(tiers_, tier.id, &tier_state::id) - tiers_.begin();
  const auto what = std::string{is_read(kind) ? "reads of" : "writes to"} + " tier "
                    + std::to_string(at + 1) + " of L3 (" + tier.store->name() + ")";
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

// -- figures ----------------------------------------------------------------------

void tiered_core::count(const std::vector<result<void>>& outcomes, bool is_read) {
  const auto lock = std::scoped_lock{mutex_};
  for (const auto& outcome : outcomes)
    if (is_read)
      counters_.count_get(outcome);
    else
      counters_.count_set(outcome);
}

backend_health tiered_core::sum_of(const tier_order& tiers, std::vector<backend_health> healths) {
  auto sum = backend_health{};
  sum.ok = false;
  auto is_bounded = true;
  const auto lock = std::scoped_lock{mutex_};
  for (auto i = size_t{0}; i < tiers.size(); ++i) {
    const auto& tier = *tiers[i];
    auto& health = healths[i];
    for (const auto* breaker : {&tier.reads, &tier.writes})
      if (health.ok && breaker->state() != breaker_state::closed) {
        health.ok = false;
        health.detail = std::string{breaker == &tier.reads ? "reads" : "writes"}
                        + " are left out: " + to_string(breaker->cause());
      }
    const auto name = tier.store->name();
    if (!health.ok)
      sum.detail += (sum.detail.empty() ? "" : "; ") + name + ": " + health.detail;
    sum.ok = sum.ok || health.ok;
    sum.objects += health.objects;
    sum.bytes += health.bytes;
    sum.capacity_bytes += health.capacity_bytes;
    is_bounded = is_bounded && health.capacity_bytes > 0;
    sum.counters.evicted += health.counters.evicted;
    sum.tiers.push_back({name, std::move(health), tier.written_bytes, tier.over_budget});
  }
  if (!is_bounded)
    sum.capacity_bytes = 0;
  sum.counters += counters_;
  return sum;
}

} // namespace hicache
