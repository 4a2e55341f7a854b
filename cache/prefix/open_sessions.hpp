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

/// What a streaming session keeps: the request of its last turn stays open, with all its pages and
/// locks, during a turn and until the next one.
struct session_slot {
  cache_namespace ns;
  /// Tokens whose KV the pages hold: those of the last insert; null if there was none.
  token_buffer tokens;
  /// The pages of `tokens`, perhaps more.
  page_list pages;
  /// The end of what the tree holds of `tokens`, or 0.
  node_id node = 0;
  /// Tokens that the turn's match answered from the slot; 0 if it was an ordinary match.
  uint64_t resumed = 0;
  /// Tokens of the turn's prompt.
  uint64_t prompt_tokens = 0;
  /// Tokens up to the end of an L2 part that the request still has, or 0. The next prompt could
  /// contradict it, so nothing is kept meanwhile.
  uint64_t l2_end = 0;
  /// True while a prefetch is open: its end may change what the request has.
  bool is_fetching = false;
  /// True if a load of its pages failed: they are given up with the turn.
  bool has_failed = false;

  /// True if the next turn may go on after `tokens`.
  bool can_stay() const noexcept { return tokens && !is_fetching && !has_failed; }
};

/// A session between open_session and close_session.
struct session_state {
  session_id name = 0;
  uint64_t generation = 0;
  bool is_streaming = false;
  /// The request that is open, by the engine's number.
  std::optional<request_id> turn;
  /// Not streaming: the reference to what was inserted last, or 0.
  uint64_t reference = 0;
  /// Streaming only.
  std::optional<session_slot> kept;

  /// The number of a streaming session's requests among the open ones.
  request_id inner() const noexcept;
};

/// Sessions: what an engine keeps of a conversation between its turns.
///
/// A streaming session's next turn goes on after its last token, not after its last whole page: its
/// match answers up to a token, its prefetch is declined, and its load_back loads nothing. What it
/// holds is what the last insert said. If the next prompt does not begin with these tokens, or its
/// limit lies inside a page that other requests may share, the slot is given up and the turn starts
/// with an ordinary match. A turn that ends before an insert, or with a prefetch open, adds nothing
/// to the session. Nothing takes the pages of a slot away, so an engine closes sessions that go
/// idle.
///
/// Another session refers to the prefix that its last turn inserted, so that eviction takes it
/// after pages that no session refers to.
///
/// A session has one open request at a time. Generations are numbers of a counter, so a closed
/// session's generation never comes back and no list of closed sessions is needed.
///
/// Requests of streaming sessions have numbers of their own; so the highest bit of a request number
/// is reserved.
///
/// Part of a prefix_cache, which opens and closes the requests.
class open_sessions {
public:
  using table = digested_map<std::map<uint64_t, session_state>>;

  explicit open_sessions(const cache_settings& settings);

  // -- sessions ---------------------------------------------------------------

  /// @returns its generation; invalid_argument if it is open already; limit_reached.
  result<uint64_t> open(const open_session_request& asked);

  /// @returns unknown_id if this generation is not open.
  result<const session_state*> find(const session_ref& ref) const;

  /// The session of a request inside, see session_state::inner(); null for other requests.
  const session_state* find_inner(request_id request) const;

  /// The session, if it has no turn. @returns unknown_id or invalid_argument.
  result<const session_state*> find_idle(const session_ref& ref) const;

  /// A session changes through an edit.
  table::edit change(const session_state& session) { return sessions_.change(session.generation); }

  /// @pre It keeps and refers to nothing.
  void close(const session_state& session);

  // -- turns ------------------------------------------------------------------

  /// The session whose turn a match is to begin; null if it names none.
  /// @returns invalid_argument for a number that is reserved or a turn's already, or if the session
  /// has a turn; unknown_id if it is not open.
  result<const session_state*> find_for(const match_request& asked) const;

  void begin_turn(const session_state& session, request_id request);

  void end_turn(const session_state& session);

  /// The session whose turn the request is, or null.
  const session_state* owner_of(request_id request) const;

  /// The number of a request among the open ones.
  /// @returns unknown_id for a reserved number.
  result<request_id> inner_of(request_id request) const;

  /// The first tokens of a turn that need not be matched, if there are any.
  std::optional<match_result> resume(const match_request& asked, const session_state& session);

  /// @returns invalid_argument if the tokens contradict those that the turn resumed.
  result<void> check_insert(const insert_request& asked, const session_state& session) const;

  /// The turn has inserted: its pages are kept, unless an L2 part is in the way.
  void keep(const insert_request& asked, const insert_result& answer, const session_state& session);

  /// The turn's request was matched again, so an insert before this moment counts no more.
  void forget_insert(const ready_request& rematched, const session_state& session);

  // -- state ------------------------------------------------------------------

  /// Sessions by generation, which is the order of opening.
  const table& list() const noexcept { return sessions_; }

  /// Requests that sessions keep open.
  uint64_t slots() const;

  bool has_turns() const noexcept { return !turns_.empty(); }

  /// The sum of the sessions' digests, the last generation, how many there are.
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

/// The pages of the first `tokens` tokens. @pre They are in the list.
page_list first_pages(const page_list& pages, uint64_t tokens, uint32_t page_size);

} // namespace hicache
