#pragma once

#include "cache/prefix/prefix_cache.hpp"

#include <memory>
#include <span>
#include <vector>

namespace hicache::test {

/// What a planted fault does.
enum class planted_fault : uint8_t { wrong_answer, abort };

/// A cache with a fault on purpose: after an insert of a part of a prefill that the tree took pages
/// of, the next eviction from the device goes wrong.
class faulty_cache final : public prefix_cache {
public:
  faulty_cache(const tree_options& options, planted_fault fault)
    : inner_(make_prefix_cache(options)), fault_(fault) {}

  result<match_result> match(const match_request& x) override { return inner_->match(x); }
  result<prefetch_result> prefetch(request_id x) override { return inner_->prefetch(x); }
  result<schedule_result> schedule(request_id x) override { return inner_->schedule(x); }
  result<load_result> load_back(const load_request& x) override { return inner_->load_back(x); }
  result<allocate_result> allocate(const allocate_request& x) override {
    return inner_->allocate(x);
  }
  result<insert_result> insert(const insert_request& x) override;
  result<void> release(request_id x) override { return inner_->release(x); }
  page_list pages_of(request_id x) const override { return inner_->pages_of(x); }
  result<request_provenance> provenance(request_id x) const override {
    return inner_->provenance(x);
  }
  result<evict_result> evict(const evict_request& x) override;
  result<pin_result> pin(const pin_request& x) override { return inner_->pin(x); }
  result<pin_result> unpin(const unpin_request& x) override { return inner_->unpin(x); }
  result<session_result> open_session(const open_session_request& x) override {
    return inner_->open_session(x);
  }
  result<session_result> close_session(const close_session_request& x) override {
    return inner_->close_session(x);
  }
  result<lock_result> lock(node_id x) override { return inner_->lock(x); }
  result<lock_result> unlock(node_id x) override { return inner_->unlock(x); }
  result<backup_result> backup(node_id x) override { return inner_->backup(x); }
  result<load_node_result> load_node(const load_node_request& x) override {
    return inner_->load_node(x);
  }
  result<uint64_t> refer(node_id x) override { return inner_->refer(x); }
  void drop_reference(uint64_t x) override { inner_->drop_reference(x); }
  result<void> clear() override { return inner_->clear(); }
  bool in_flight() const noexcept override { return inner_->in_flight(); }
  std::span<const operation_id> backing_up() const noexcept override {
    return inner_->backing_up();
  }
  bool has_pins() const noexcept override { return inner_->has_pins(); }
  std::span<const fetch_id> fetching() const noexcept override { return inner_->fetching(); }
  std::span<const fetch_id> fetching_later() const noexcept override {
    return inner_->fetching_later();
  }
  std::optional<int64_t> next_stop_ns() const noexcept override { return inner_->next_stop_ns(); }
  std::vector<ready_request> step(const step_facts& facts,
                                  std::span<const page_list> arrived) override {
    return inner_->step(facts, arrived);
  }
  std::span<const request_id> failed() const noexcept override { return inner_->failed(); }
  std::vector<tree_effect> take_effects() override { return inner_->take_effects(); }
  std::vector<cache_event> take_events() override { return inner_->take_events(); }
  void change_storage(const storage_change& x) override { inner_->change_storage(x); }
  void stop_serving() noexcept override { inner_->stop_serving(); }
  uint64_t digest() const noexcept override { return inner_->digest(); }
  tree_stats stats() const noexcept override { return inner_->stats(); }
  std::vector<node_view> nodes() const override { return inner_->nodes(); }
  void check_invariants() const override { inner_->check_invariants(); }

private:
  std::unique_ptr<prefix_cache> inner_;
  planted_fault fault_;
  bool is_armed_ = false;
};

} // namespace hicache::test
