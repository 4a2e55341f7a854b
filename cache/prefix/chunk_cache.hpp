#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "cache/radix/page_allocator.hpp"

#include <absl/container/flat_hash_map.h>

namespace hicache {

/// A prefix_cache that shares nothing (SGLang's ChunkCache): a match finds nothing, a request's
/// pages stay its own, and release frees them. No L2, no L3, no events but the first
/// `cache_cleared`. Nodes do not exist; pins pin 0 tokens; eviction frees nothing.
class chunk_cache final : public prefix_cache {
public:
  explicit chunk_cache(const tree_options& options);

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
  result<session_result> open_session(const open_session_request& request) override;
  result<session_result> close_session(const close_session_request& request) override;
  result<lock_result> lock(node_id node) override;
  result<lock_result> unlock(node_id node) override;
  result<backup_result> backup(node_id node) override;
  result<load_node_result> load_node(const load_node_request& request) override;
  result<uint64_t> refer(node_id node) override;
  void drop_reference(uint64_t reference) override;
  result<void> clear() override;

  bool in_flight() const noexcept override { return false; }
  std::span<const operation_id> backing_up() const noexcept override { return {}; }
  bool has_pins() const noexcept override { return false; }
  std::span<const fetch_id> fetching() const noexcept override { return {}; }
  std::span<const fetch_id> fetching_later() const noexcept override { return {}; }
  std::optional<int64_t> next_stop_ns() const noexcept override { return std::nullopt; }
  std::vector<ready_request> step(const step_facts& facts,
                                  std::span<const page_list> arrived) override;
  std::span<const request_id> failed() const noexcept override { return {}; }
  std::vector<tree_effect> take_effects() override { return {}; }
  std::vector<cache_event> take_events() override;

  void change_storage(const storage_change& change) override;
  void stop_serving() noexcept override;
  uint64_t digest() const noexcept override;
  tree_stats stats() const noexcept override;
  std::vector<node_view> nodes() const override { return {}; }
  void check_invariants() const override;

private:
  struct open_request {
    page_list pages;
    uint64_t prompt_tokens = 0;
  };

  result<open_request*> find(request_id id);
  static uint64_t digest_of(request_id id, const open_request& request) noexcept;

  uint32_t page_size_;
  /// Never used: nothing is copied to L2.
  uint32_t host_pages_;
  page_allocator pool_;
  absl::flat_hash_map<request_id, open_request> requests_;
  uint64_t requests_digest_ = 0;
  event_queue events_;
};

} // namespace hicache
