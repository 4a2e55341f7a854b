#pragma once

#include "cache/prefix/prefix_cache.hpp"

#include <memory>
#include <span>
#include <vector>

namespace hicache {

/// The HiRadixTree: a prefix_cache that shares prefixes on two tiers.
///
/// Invariants (checked by `check_invariants`):
/// - Pages on the device form a prefix of every path from the root.
/// - A node holds whole pages; each page belongs to one node, one request, one copy in flight, the
/// reserve, or a free list.
/// - A locked node is never evicted; a lock on a node protects its ancestors.
/// - A page is written to L2 after its parent (backup continuity), but for write_back, and to L3
/// after it is complete in L2 and its parent is in L3. Pages that a prefetch brought may hang below
/// a page that is on the device only.
class hi_radix_tree final : public prefix_cache {
public:
  explicit hi_radix_tree(const tree_options& options);

  ~hi_radix_tree() override;

  hi_radix_tree(hi_radix_tree&&) noexcept;

  hi_radix_tree& operator=(hi_radix_tree&&) noexcept;

  result<match_result> match(const match_request& request) override;
  result<prefetch_result> prefetch(request_id request) override;
  result<schedule_result> schedule(request_id request) override;
  result<load_result> load_back(const load_request& request) override;
  result<allocate_result> allocate(const allocate_request& request) override;
  result<insert_result> insert(const insert_request& request) override;
  result<void> release(request_id request) override;
  page_list pages_of(request_id request) const override;
  result<request_provenance> provenance(request_id request) const override;

  result<evict_result> evict(const evict_request& request) override;
  result<pin_result> pin(const pin_request& request) override;
  result<pin_result> unpin(const unpin_request& request) override;

  /// Sessions are session_cache's: unsupported here.
  result<session_result> open_session(const open_session_request& request) override;
  result<session_result> close_session(const close_session_request& request) override;

  result<lock_result> lock(node_id node) override;
  result<lock_result> unlock(node_id node) override;
  result<backup_result> backup(node_id node) override;
  result<load_node_result> load_node(const load_node_request& request) override;
  result<uint64_t> refer(node_id node) override;
  void drop_reference(uint64_t reference) override;
  result<void> clear() override;

  bool in_flight() const noexcept override;
  std::span<const operation_id> backing_up() const noexcept override;
  bool has_pins() const noexcept override;
  std::span<const fetch_id> fetching() const noexcept override;
  std::span<const fetch_id> fetching_later() const noexcept override;
  std::optional<int64_t> next_stop_ns() const noexcept override;
  std::vector<ready_request> step(const step_facts& facts,
                                  std::span<const page_list> arrived) override;
  std::span<const request_id> failed() const noexcept override;
  std::vector<tree_effect> take_effects() override;
  std::vector<cache_event> take_events() override;

  void change_storage(const storage_change& change) override;
  void stop_serving() noexcept override;
  uint64_t digest() const noexcept override;
  tree_stats stats() const noexcept override;
  std::vector<node_view> nodes() const override;
  void check_invariants() const override;

private:
  struct impl;

  std::unique_ptr<impl> impl_;
};

} // namespace hicache
