#include "cache/prefix/open_sessions.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/radix/prefix_key.hpp"

#include <algorithm>
#include <string>

namespace hicache {

namespace {

/// Marks the internal numbers of streaming sessions' requests.
constexpr request_id inside = request_id{1} << 63;

std::string name_of(request_id request) {
  return "request " + std::to_string(request);
}

std::string name_of(const session_ref& ref) {
  return "session " + std::to_string(ref.session) + ", generation "
         + std::to_string(ref.generation);
}

uint64_t digest_of(const session_state& session) noexcept {
  auto digest = mix(mix(session.name, session.generation),
                    mix(session.reference, uint64_t{session.is_streaming}));
  if (session.turn)
    digest = mix(digest, mix(*session.turn, 1));
  if (const auto& kept = session.kept)
    digest = mix(digest, mix(mix(kept->tokens ? kept->tokens->size() : 0, kept->node),
                             mix(kept->resumed, kept->l2_end << 2 | uint64_t{kept->has_failed} << 1
                                                  | uint64_t{kept->is_fetching})));
  return digest;
}

} // namespace

request_id session_state::inner() const noexcept {
  return inside | generation;
}

open_sessions::open_sessions(const cache_settings& settings)
  : settings_(settings), sessions_(&digest_of) {
  // nop
}

// -- sessions -----------------------------------------------------------------

result<uint64_t> open_sessions::open(const open_session_request& asked) {
  if (asked.session == 0)
    return fail(ec::invalid_argument, "session 0 names none");
  if (const auto open = generations_.find(asked.session); open != generations_.end())
    return fail(ec::invalid_argument, name_of({asked.session, open->second}) + " is open already");
  if (sessions_.size() >= limits::sessions_open)
    return fail(ec::limit_reached, "too many open sessions");
  const auto generation = ++last_generation_;
  sessions_.insert(generation, {asked.session, generation, asked.streaming, {}, 0, {}});
  generations_.emplace(asked.session, generation);
  return generation;
}

result<const session_state*> open_sessions::find(const session_ref& ref) const {
  const auto* session = sessions_.find(ref.generation);
  if (session == nullptr || session->name != ref.session)
    return fail(ec::unknown_id, name_of(ref) + " is not open (any more)");
  return session;
}

result<const session_state*> open_sessions::find_idle(const session_ref& ref) const {
  auto found = find(ref);
  if (found && (*found)->turn)
    return fail(ec::invalid_argument,
                name_of(ref) + " has an open request: " + name_of(*(*found)->turn));
  return found;
}

const session_state* open_sessions::find_inner(request_id request) const {
  return (request & inside) == 0 ? nullptr : &sessions_.at(request & ~inside);
}

void open_sessions::close(const session_state& session) {
  HICACHE_CHECK(!session.turn && !session.kept);
  generations_.erase(session.name);
  sessions_.take(session.generation);
}

// -- turns --------------------------------------------------------------------

result<const session_state*> open_sessions::find_for(const match_request& asked) const {
  if ((asked.request & inside) != 0)
    return fail(ec::invalid_argument,
                name_of(asked.request) + ": numbers with the highest bit are reserved");
  if (turns_.contains(asked.request))
    return fail(ec::invalid_argument, name_of(asked.request) + " is open already");
  if (asked.session.session == 0)
    return nullptr;
  return find_idle(asked.session);
}

void open_sessions::begin_turn(const session_state& session, request_id request) {
  change(session)->turn = request;
  turns_.emplace(request, session.generation);
}

void open_sessions::end_turn(const session_state& session) {
  turns_.erase(*session.turn);
  change(session)->turn.reset();
}

const session_state* open_sessions::owner_of(request_id request) const {
  const auto turn = turns_.find(request);
  return turn == turns_.end() ? nullptr : sessions_.find(turn->second);
}

result<request_id> open_sessions::inner_of(request_id request) const {
  if ((request & inside) != 0)
    return fail(ec::unknown_id, name_of(request) + " is not open");
  const auto* owner = owner_of(request);
  return owner != nullptr && owner->kept ? owner->inner() : request;
}

std::optional<match_result> open_sessions::resume(const match_request& asked,
                                                  const session_state& session) {
  const auto slot = change(session);
  auto& kept = *slot->kept;
  const auto held = kept.tokens->size();
  if (settings_.is_stopped || asked.ns != kept.ns || asked.tokens->size() < held
      || !begin_alike(asked.tokens, kept.tokens, held))
    return std::nullopt;
  // The engine computes what follows, and must not write to pages that other requests may read.
  const auto page_size = settings_.options.page_size;
  const auto shared = kept.node == 0 ? 0 : held / page_size * page_size;
  const auto count = std::min<uint64_t>(held, asked.limit);
  if (count == 0 || count < shared)
    return std::nullopt;
  kept.resumed = count;
  kept.prompt_tokens = asked.tokens->size();
  return match_result{.l1_tokens = count, .node = kept.node};
}

result<void> open_sessions::check_insert(const insert_request& asked,
                                         const session_state& session) const {
  if (!session.kept || !session.kept->tokens || !asked.tokens)
    return {};
  const auto& kept = *session.kept;
  const auto count = std::min<uint64_t>({kept.resumed, kept.tokens->size(), asked.tokens->size()});
  if (!begin_alike(asked.tokens, kept.tokens, count))
    return fail(ec::invalid_argument,
                name_of(asked.request) + ": the tokens do not begin with those of the match");
  return {};
}

void open_sessions::keep(const insert_request& asked, const insert_result& answer,
                         const session_state& session) {
  const auto changed = change(session);
  auto& kept = *changed->kept;
  kept.node = answer.node;
  kept.tokens = nullptr;
  if (asked.tokens->size() > kept.l2_end) {
    kept.tokens = asked.tokens;
    kept.l2_end = 0;
  }
}

void open_sessions::forget_insert(const ready_request& rematched, const session_state& session) {
  HICACHE_CHECK(session.turn && session.kept);
  const auto changed = change(session);
  auto& kept = *changed->kept;
  kept.is_fetching = false;
  kept.tokens = nullptr;
  kept.l2_end = rematched.l2_tokens > 0 ? rematched.l1_tokens + rematched.l2_tokens : 0;
}

// -- state --------------------------------------------------------------------

uint64_t open_sessions::slots() const {
  return static_cast<uint64_t>(std::ranges::count_if(
    sessions_, [](const auto& entry) { return entry.second.kept.has_value(); }));
}

void open_sessions::check_invariants() const {
  sessions_.check_digest();
  auto turns = size_t{0};
  for (const auto& [generation, session] : sessions_) {
    HICACHE_CHECK(session.generation == generation && generations_.at(session.name) == generation);
    if (session.turn) {
      ++turns;
      HICACHE_CHECK(turns_.at(*session.turn) == generation);
      HICACHE_CHECK(session.kept.has_value() == session.is_streaming);
    }
    if (const auto& kept = session.kept)
      HICACHE_CHECK(session.is_streaming && (session.turn || kept->tokens));
  }
  HICACHE_CHECK(turns == turns_.size() && generations_.size() == sessions_.size());
}

} // namespace hicache
