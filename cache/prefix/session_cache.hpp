#pragma once

#include "cache/prefix/prefix_cache.hpp"

#include <absl/container/flat_hash_map.h>

#include <map>
#include <memory>
#include <optional>

namespace hicache {

/// Adds sessions to any prefix_cache.
///
/// A streaming session keeps the inner request of its last turn open, with all its pages and locks,
/// so the next turn goes on after its last token, not after its last whole page: its match answers
/// up to a token, its prefetch is declined, and its load_back loads nothing. What it holds is what
/// the last insert said. If the next prompt does not begin with these tokens, or its limit lies
/// inside a page that other requests may share, the slot is given up and the turn starts with an
/// ordinary match. A turn that ends before an insert, or with a prefetch open, adds nothing to the
/// session. Nothing takes the pages of a slot away, so an engine closes sessions that go idle.
///
/// Another session refers to the prefix that its last turn inserted, so that eviction takes it
/// after pages that no session refers to.
///
/// A session has one open request at a time. Generations are numbers of a counter, so a closed
/// session's generation never comes back and no list of closed sessions is needed.
///
/// Requests of streaming sessions have numbers of their own inside; so the highest bit of a request
/// number is reserved, and matching a request that has it is invalid_argument.
class session_cache final : public prefix_cache {
public:
  /// @param inner Not null; used by nobody else.
  /// @param page_size As in the options of `inner`.
  session_cache(std::unique_ptr<prefix_cache> inner, uint32_t page_size);

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

  /// Gives up what sessions hold, too; they stay open.
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

  /// Slots count as open requests.
  tree_stats stats() const noexcept override;
  std::vector<node_view> nodes() const override;
  void check_invariants() const override;

private:
  /// The inner request of a streaming session, during a turn and until the next one.
  struct slot {
    cache_namespace ns;
    /// Tokens whose KV the pages hold: those of the last insert; null if there was none.
    token_buffer tokens;
    /// The pages of `tokens`, perhaps more.
    page_list pages;
    /// The end of what the inner cache holds of `tokens`, or 0.
    node_id node = 0;
    /// Tokens that the turn's match answered from the slot; 0 if it was an ordinary match.
    uint64_t resumed = 0;
    /// Tokens of the turn's prompt.
    uint64_t prompt_tokens = 0;
    /// Tokens up to the end of a host part that the inner request still has, or 0. The next prompt
    /// could contradict it, so nothing is kept meanwhile.
    uint64_t host_end = 0;
    /// True while a prefetch is open: its end may change what the inner request has.
    bool is_fetching = false;
    /// True if a load of its pages failed: they are given up with the turn.
    bool has_failed = false;
  };

  struct session {
    session_id name = 0;
    uint64_t generation = 0;
    bool is_streaming = false;
    /// The request that is open, by the engine's number.
    std::optional<request_id> turn;
    /// Not streaming: the reference to what was inserted last, or 0.
    uint64_t reference = 0;
    /// Streaming: what the inner cache has open for the session.
    std::optional<slot> kept;
    /// This session's part of the digest.
    uint64_t recorded = 0;

    /// The number of the session's requests in the inner cache.
    request_id inner() const noexcept;
    uint64_t digest() const noexcept;
  };

  result<session*> find(const session_ref& ref);
  /// The session whose turn `request` is; null if it is none's.
  /// @returns unknown_id for a number that engines cannot use.
  result<session*> session_of(request_id request);
  /// The first tokens of a turn that need not be matched, if there are any.
  std::optional<match_result> resume(const match_request& asked, const session& owner) const;
  result<match_result> begin(const match_request& asked, session& owner);
  /// Does an operation of a request under the number that the request has inside.
  template <class Result, class Request>
  result<Result> forward(result<Result> (prefix_cache::*operation)(const Request&),
                         const Request& asked, const session* owner);
  void give_up(session& owner);

  /// The inner cache lost pages of this request of its own.
  void lose(request_id request);
  /// Brings the digest up to date after a change of the session's fields.
  void changed(session& owner);

  std::unique_ptr<prefix_cache> inner_;
  uint32_t page_size_;
  /// By generation, so that the order is that of opening.
  std::map<uint64_t, session> sessions_;
  absl::flat_hash_map<session_id, uint64_t> generations_;
  /// Open requests of sessions.
  absl::flat_hash_map<request_id, session*> turns_;
  uint64_t last_generation_ = 0;
  uint64_t slots_ = 0;
  /// Locks by handle that are held in the inner cache.
  uint64_t handle_locks_ = 0;
  uint64_t sessions_digest_ = 0;
  bool is_stopped_ = false;
  /// Of the last step, by the engine's numbers.
  std::vector<request_id> failed_;
};

} // namespace hicache
