#include "cache/prefix/open_pins.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"

#include <algorithm>

namespace hicache {

uint64_t open_pins::digest_of(const open_pin& pin) noexcept {
  return mix(mix(pin.end->id(), static_cast<uint64_t>(pin.ttl_ns)),
             mix(static_cast<uint64_t>(pin.expiry_ns), static_cast<uint64_t>(pin.asked_ttl_ns)));
}

// -- budget -------------------------------------------------------------------

uint64_t open_pins::unpinned_pages(const path_end& end) {
  const auto& last = *end.node;
  auto count = last.pins() == 0 && !last.is_root() ? end.pages - last.first() : 0;
  for (const auto* node = last.parent(); node != nullptr; node = node->parent())
    count += node->pins() == 0 ? node->pages() : 0;
  return count;
}

bool open_pins::fits_budget(const path_end& end) const {
  const auto used = pages_.find(end.node->ns().salt);
  return (used == pages_.end() ? 0 : used->second) + unpinned_pages(end)
         <= settings_.options.pin_budget_pages;
}

uint64_t open_pins::pages() const {
  auto sum = uint64_t{0};
  for (const auto& [tenant, pages] : pages_)
    sum += pages;
  return sum;
}

// -- begin and end ------------------------------------------------------------

void open_pins::begin(radix_node& end, std::chrono::nanoseconds ttl) {
  if (pins_.find(end.id()) == nullptr) {
    pages_[end.ns().salt] += unpinned_pages({&end, end.end()});
    tree_.pin(end);
    pins_.insert(end.id(), open_pin{.end = &end});
  }
  {
    const auto pin = pins_.change(end.id());
    if (pin->asked_ttl_ns == 0)
      asked_.push_back(end.id());
    pin->asked_ttl_ns = std::max<int64_t>(pin->asked_ttl_ns, ttl.count());
    pin->ttl_ns = std::max(pin->ttl_ns, pin->asked_ttl_ns);
  }
  if (settings_.options.write != write_policy::write_back)
    copies_.write_path(end, settings_.least_hits(), false);
}

void open_pins::refresh(const radix_node& end) {
  if (!settings_.options.pin_refresh || settings_.is_stopped)
    return;
  // Pin counts grow towards the root.
  for (const auto* node = &end; !node->is_root(); node = node->parent())
    if (node->pins() > 0)
      if (const auto* pin = pins_.find(node->id()); pin != nullptr)
        begin(*pin->end, std::chrono::nanoseconds{pin->ttl_ns});
}

void open_pins::end(node_id id) {
  const auto pin = pins_.take(id);
  if (pin.is_timed)
    expiries_.erase({pin.expiry_ns, id});
  if (pin.asked_ttl_ns != 0)
    std::erase(asked_, id);
  const auto used = pages_.find(pin.end->ns().salt);
  for (const auto* node = pin.end; !node->is_root(); node = node->parent())
    used->second -= node->pins() == 1 ? node->pages() : 0;
  if (used->second == 0)
    pages_.erase(used);
  tree_.unpin(*pin.end);
}

void open_pins::end_within(const path_end& end_of_path) {
  auto ended = std::vector<node_id>{};
  for (const auto* node = end_of_path.node; !node->is_root(); node = node->parent())
    if (node->end() <= end_of_path.pages && pins_.find(node->id()) != nullptr)
      ended.push_back(node->id());
  for (const auto id : ended)
    end(id);
}

void open_pins::end_below(const radix_node& top) {
  auto ended = std::vector<node_id>{};
  for (const auto& [id, pin] : pins_)
    for (const auto* node = pin.end; !node->is_root(); node = node->parent())
      if (node == &top)
        ended.push_back(id);
  for (const auto id : ended)
    end(id);
}

void open_pins::end_all() {
  while (!pins_.empty())
    end(pins_.begin()->first);
}

void open_pins::advance() {
  const auto now = settings_.now_ns;
  for (const auto id : std::exchange(asked_, {})) {
    const auto pin = pins_.change(id);
    const auto expiry = now + std::min(pin->asked_ttl_ns, INT64_MAX - now);
    if (pin->is_timed)
      expiries_.erase({pin->expiry_ns, id});
    pin->expiry_ns = pin->is_timed ? std::max(pin->expiry_ns, expiry) : expiry;
    pin->is_timed = true;
    pin->asked_ttl_ns = 0;
    expiries_.emplace(pin->expiry_ns, id);
  }
  while (!expiries_.empty() && expiries_.begin()->first <= now)
    end(expiries_.begin()->second);
}

// -- checks -------------------------------------------------------------------

void open_pins::count_locks(lock_census& census) const {
  for (const auto& [id, pin] : pins_)
    census.add(nullptr, pin.end);
  for (const auto* node : tree_.sorted_nodes())
    if (node->has_pin_lock())
      census.add(node, nullptr);
}

void open_pins::check_invariants() const {
  pins_.check_digest();
  auto counts = lock_census{};
  auto timed = size_t{0};
  for (const auto& [id, pin] : pins_) {
    HICACHE_CHECK(pin.end->id() == id && (pin.is_timed || pin.asked_ttl_ns > 0));
    timed += pin.is_timed ? 1 : 0;
    HICACHE_CHECK(!pin.is_timed || expiries_.contains({pin.expiry_ns, id}));
    counts.add(nullptr, pin.end);
  }
  HICACHE_CHECK(expiries_.size() == timed);
  for (const auto id : asked_)
    HICACHE_CHECK(pins_.at(id).asked_ttl_ns > 0);
  auto used = std::map<std::string, uint64_t>{};
  for (const auto* node : tree_.sorted_nodes())
    if (!node->is_root()) {
      HICACHE_CHECK(node->pins() == counts.l2_locks(*node));
      if (node->pins() > 0)
        used[node->ns().salt] += node->pages();
    }
  HICACHE_CHECK(used == pages_);
  for (const auto& [tenant, pages] : used)
    HICACHE_CHECK(pages <= settings_.options.pin_budget_pages);
}

} // namespace hicache
