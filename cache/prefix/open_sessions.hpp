#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/digested_map.hpp"
#include "hicache/error.hpp"
#include "messages/commands.hpp"

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>

namespace hicache {

/// What a streaming session keeps: the request of its last turn, which stays open with all its
/// pages and locks until the next turn.
struct session_slot {
  cache_namespace ns;
  /// Tokens whose KV the pages hold: those of the last insert; null if there was none.
  token_buffer tokens;
  /// End of the part of `tokens` that is in the tree, or 0.
  node_id node = 0;
  /// Tokens that the turn's match took from the slot; 0 for an ordinary match.
  uint64_t resumed = 0;
  /// Tokens of the turn's prompt.
  uint64_t prompt_tokens = 0;
  /// End, in tokens, of an L2 part that the request still has, or 0. The next prompt could diverge
  /// from it, so the slot is not kept meanwhile.
  uint64_t l2_end = 0;
  /// A prefetch is open; its end may change the request's pages.
  bool is_fetching = false;
  /// A load of its pages failed: they are dropped with the turn.
  bool has_failed = false;

  /// True if the next turn may continue after `tokens`.
  bool can_stay() const noexcept { return tokens && !is_fetching && !has_failed; }
};

/// A session between open_session and close_session.
struct session_state {
  session_id name = 0;
  uint64_t generation = 0;
  bool is_streaming = false;
  /// The open request, by the engine's number.
  std::optional<request_id> turn;
  /// Not streaming: reference to the last inserted prefix, or 0.
  uint64_t reference = 0;
  /// Streaming only.
  std::optional<session_slot> kept;

  /// Internal number of a streaming session's requests.
  request_id inner() const noexcept;
};

/// Sessions: what an engine keeps of a conversation between its turns.
///
/// The next turn of a streaming session continues after its last token, not after its last whole
/// page: its match answers up to a token, its prefetch is declined, and its load_back loads
/// nothing. The slot holds what was last inserted. If the next prompt does not begin with these
/// tokens, or its limit lies inside a page that other requests may share, the slot is dropped and
/// the turn starts with an ordinary match. A turn that ends before an insert, or with a prefetch
/// open, adds nothing. Slots are never evicted, so an engine must close idle sessions.
///
/// A non-streaming session refers to its last inserted prefix, which is evicted after unreferenced
/// pages.
///
/// A session has one open request at a time. Generations come from a counter and are never reused,
/// so no list of closed sessions is needed.
///
/// Requests of streaming sessions have internal numbers with the highest bit set, which is
/// therefore reserved in request numbers.
///
/// Part of a prefix_cache, which opens and closes the requests.
class open_sessions {
public:
  using table = digested_map<std::map<uint64_t, session_state>>;

  explicit open_sessions(const cache_settings& settings);

  // -- sessions ---------------------------------------------------------------

  /// @returns its generation; invalid_argument if it is already open; limit_reached.
  result<uint64_t> open(const open_session_request& asked);

  /// @returns unknown_id if this generation is not open.
  result<const session_state*> find(const session_ref& ref) const;

  /// The session of an internal request (session_state::inner()); null for other requests.
  const session_state* find_inner(request_id request) const;

  /// The session, if it has no turn. @returns unknown_id or invalid_argument.
  result<const session_state*> find_idle(const session_ref& ref) const;

  /// Sessions are changed through an edit.
  table::edit change(const session_state& session) { return sessions_.change(session.generation); }

  /// @pre it has no slot and no reference
  void close(const session_state& session);

  // -- turns ------------------------------------------------------------------

  /// The session whose turn a match begins; null if it names none.
  /// @returns invalid_argument for a reserved number or one in use by a turn, or if the session
  /// already has a turn; unknown_id if it is not open.
  result<const session_state*> find_for(const match_request& asked) const;

  void begin_turn(const session_state& session, request_id request);

  void end_turn(const session_state& session);

  /// The session whose current turn the request is, or null.
  const session_state* owner_of(request_id request) const;

  /// The internal number of a request.
  /// @returns unknown_id for a reserved number.
  result<request_id> inner_of(request_id request) const;

  /// The first tokens of a turn that need not be matched, if any.
  std::optional<match_result> resume(const match_request& asked, const session_state& session);

  /// @returns invalid_argument if the tokens differ from those that the turn resumed.
  result<void> check_insert(const insert_request& asked, const session_state& session) const;

  /// Keeps the pages of a turn's insert, unless the request has an L2 part.
  void keep(const insert_request& asked, const insert_result& answer, const session_state& session);

  /// The turn's request was rematched: discards its insert.
  void forget_insert(const ready_request& rematched, const session_state& session);

  // -- state ------------------------------------------------------------------

  /// Sessions by generation, that is, in the order of opening.
  const table& list() const noexcept { return sessions_; }

  /// Number of requests that sessions keep open.
  uint64_t slots() const;

  bool has_turns() const noexcept { return !turns_.empty(); }

  /// The sum of the sessions' digests, the last generation, the number of sessions.
  std::array<uint64_t, 3> digest() const noexcept {
    return {sessions_.digest(), last_generation_, sessions_.size()};
  }

  void check_invariants() const;

private:
  const cache_settings& settings_;
  table sessions_;
  absl::flat_hash_map<session_id, uint64_t> generations_;
  /// The session of each turn.
  absl::flat_hash_map<request_id, uint64_t> turns_;
  uint64_t last_generation_ = 0;
};

} // namespace hicache
