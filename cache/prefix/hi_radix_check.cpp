// What must hold in a hi_radix_tree at all times, beyond what holds in its radix_tree.

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

#include <algorithm>
#include <map>

namespace hicache {

namespace {

/// Locks that the holders account for, by node.
using lock_counts = std::map<const radix_node*, uint32_t>;

void count_path(lock_counts& counts, const radix_node& end) {
  for (const auto* node = &end; node != nullptr; node = node->parent)
    ++counts[node];
}

uint32_t count_of(const lock_counts& counts, const radix_node* node) {
  const auto entry = counts.find(node);
  return entry == counts.end() ? 0 : entry->second;
}

/// Who has each page of a pool; every taken page has one owner.
class page_census {
public:
  explicit page_census(const page_allocator& pool)
    : pool_(pool), seen_(uint64_t{pool.capacity()} + 1) {}

  void add(std::span<const page_index> pages) {
    for (const auto page : pages) {
      HICACHE_CHECK(pool_.is_taken(page) && !seen_[page]);
      seen_[page] = true;
      ++count_;
    }
  }

  /// Nothing is lost.
  bool is_complete() const { return count_ + pool_.free() == pool_.capacity(); }

private:
  const page_allocator& pool_;
  std::vector<bool> seen_;
  uint64_t count_ = 0;
};

} // namespace

void hi_radix_tree::impl::check_locks() const {
  auto device = lock_counts{};
  auto host = lock_counts{};
  for (const auto& [id, request] : requests) {
    HICACHE_CHECK(request.device_end->end() == request.device_pages);
    HICACHE_CHECK((request.host_end == nullptr) == (request.host_pages == 0));
    count_path(device, *request.device_end);
    if (request.host_end != nullptr) {
      HICACHE_CHECK(request.host_end->end() == request.matched_pages());
      count_path(host, *request.host_end);
    }
  }
  for (const auto* queue : {&writes, &loads}) {
    HICACHE_CHECK(queue->in_flight.size() == queue->issued - queue->done);
    for (const auto& operation : queue->in_flight) {
      count_path(device, *operation.end);
      count_path(host, *operation.end);
    }
  }
  for (const auto& [id, backup] : backups) {
    count_path(host, *backup.end);
    if (backup.device_end != nullptr)
      count_path(device, *backup.device_end);
  }
  auto writing = uint64_t{0};
  for (const auto* node : tree.sorted_nodes())
    writing += node->write == 0 ? 0 : node->pages;
  HICACHE_CHECK(writing == writing_pages && unstaged.size() <= limits::unstaged_paths);
  auto held = uint64_t{0};
  for (const auto& [id, list] : handle_locks) {
    HICACHE_CHECK(!list.empty());
    for (const auto& lock : list) {
      ++held;
      count_path(device, *lock.device_end);
      if (lock.host_end != nullptr)
        count_path(host, *lock.host_end);
    }
  }
  HICACHE_CHECK(held == handle_locks_count);
  for (const auto& [id, pin] : pins)
    count_path(host, *pin.end);
  for (const auto* node : tree.sorted_nodes())
    if (node->has_pin_lock)
      count_path(device, *node);
  for (const auto* node : tree.sorted_nodes()) {
    HICACHE_CHECK(node->device_locks == count_of(device, node));
    HICACHE_CHECK(node->host_locks == count_of(host, node));
    HICACHE_CHECK(node->write == 0 || node->write > writes.done);
    HICACHE_CHECK(node->load == 0 || node->load > loads.done);
    HICACHE_CHECK(node->backup == 0 || backups.contains(node->backup));
  }
}

void hi_radix_tree::impl::check_pages() const {
  auto device = page_census{tree.device_pool()};
  auto host = page_census{tree.host_pool()};
  for (const auto* node : tree.sorted_nodes()) {
    device.add(node->device);
    host.add(node->host);
  }
  for (const auto& [id, request] : requests)
    device.add(request.owned);
  auto reserved = std::vector<page_index>{};
  for (auto page = page_index{1}; page < in_reserve.size(); ++page)
    if (in_reserve[page])
      reserved.push_back(page);
  HICACHE_CHECK(reserved.size() == reserve && reserve <= options.prefetch_reserve_pages);
  host.add(reserved);
  HICACHE_CHECK(device.is_complete() && host.is_complete());
}

void hi_radix_tree::impl::check_pins() const {
  auto counts = lock_counts{};
  auto digests = uint64_t{0};
  auto timed = size_t{0};
  for (const auto& [id, pin] : pins) {
    HICACHE_CHECK(pin.end->id == id && (pin.is_timed || pin.asked_ttl_ns > 0));
    timed += pin.is_timed ? 1 : 0;
    HICACHE_CHECK(!pin.is_timed || expiries.contains({pin.expiry_ns, id}));
    count_path(counts, *pin.end);
    digests += pin_digest(id, pin);
  }
  HICACHE_CHECK(expiries.size() == timed && digests == pins_digest);
  for (const auto id : asked_pins)
    HICACHE_CHECK(pins.at(id).asked_ttl_ns > 0);
  auto used = std::map<std::string, uint64_t>{};
  for (const auto* node : tree.sorted_nodes())
    if (!node->is_root()) {
      HICACHE_CHECK(node->pins == count_of(counts, node));
      if (node->pins > 0)
        used[node->root().ns->salt] += node->pages;
    }
  HICACHE_CHECK(used == pinned_pages);
  for (const auto& [tenant, pages] : used)
    HICACHE_CHECK(pages <= options.pin_budget_pages);
}

void hi_radix_tree::impl::check_invariants() const {
  tree.check_invariants();
  check_locks();
  check_pages();
  check_pins();
  auto digests = uint64_t{0};
  for (const auto& [id, request] : requests) {
    HICACHE_CHECK(request.id == id
                  && request.pages->size() == request.device_pages + request.owned.size());
    HICACHE_CHECK(request.fetch == 0
                  || std::ranges::count(fetches.at(request.fetch).requests, id) == 1);
    HICACHE_CHECK(request.stop_ns == 0 || request.is_overdue || request.fetch == 0
                  || stop_times.contains({request.stop_ns, id}));
    digests += request.digest();
  }
  HICACHE_CHECK(digests == requests_digest);
  for (const auto& [stop_ns, id] : stop_times)
    HICACHE_CHECK(requests.at(id).stop_ns == stop_ns && requests.at(id).fetch != 0);
  digests = 0;
  for (const auto& [id, fetch] : fetches) {
    for (const auto request : fetch.requests)
      HICACHE_CHECK(requests.at(request).fetch == id);
    HICACHE_CHECK(!fetch.requests.empty() || fetch.is_terminated);
    digests += fetch.digest(id);
  }
  HICACHE_CHECK(digests == fetches_digest);
  const auto numbers = [](const auto& open) {
    auto list = std::vector<uint64_t>{};
    for (const auto& [id, what] : open)
      list.push_back(id);
    return list;
  };
  HICACHE_CHECK(std::ranges::is_permutation(open_fetches, numbers(fetches))
                && std::ranges::is_permutation(open_backups, numbers(backups)));
  auto waiting = uint64_t{0};
  auto held = uint64_t{0};
  auto held_pages = uint64_t{0};
  for (const auto& [id, backup] : backups) {
    waiting += backup.is_dropped ? 0 : backup.pages;
    held += backup.is_in_quarantine ? 1 : 0;
    held_pages += backup.is_in_quarantine ? backup.pages : 0;
  }
  HICACHE_CHECK(held == held_backups && held_pages == quarantined);
  HICACHE_CHECK(waiting == backup_pages && backup_pages <= options.backup_limit_pages);
}

} // namespace hicache
