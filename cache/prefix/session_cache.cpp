#include "cache/prefix/session_cache.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/radix/prefix_key.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace hicache {

namespace {

/// Marks the numbers that requests of streaming sessions have inside.
constexpr request_id inside = request_id{1} << 63;

std::string name_of(request_id request) {
  return "request " + std::to_string(request);
}

std::string name_of(const session_ref& ref) {
  return "session " + std::to_string(ref.session) + ", generation "
         + std::to_string(ref.generation);
}

/// The inner cache names its request in an error; the engine knows another number.
void rename(error& failure, request_id from, request_id to) {
  const auto name = name_of(from);
  if (const auto at = failure.detail.find(name); from != to && at != std::string::npos)
    failure.detail.replace(at, name.size(), name_of(to));
}

/// The pages of the first `tokens` tokens.
page_list first_pages(const page_list& pages, uint64_t tokens, uint32_t page_size) {
  const auto count = (tokens + page_size - 1) / page_size;
  HICACHE_CHECK(count <= pages->size());
  if (count == pages->size())
    return pages;
  const auto begin = pages->begin();
  return std::make_shared<const std::vector<page_index>>(begin,
                                                         begin + static_cast<ptrdiff_t>(count));
}

} // namespace

request_id session_cache::session::inner() const noexcept {
  return inside | generation;
}

uint64_t session_cache::session::digest() const noexcept {
  auto digest = mix(mix(name, generation), mix(reference, uint64_t{is_streaming}));
  if (turn)
    digest = mix(digest, mix(*turn, 1));
  if (kept)
    digest
      = mix(digest, mix(mix(kept->tokens ? kept->tokens->size() : 0, kept->node),
                        mix(kept->resumed, kept->host_end << 2 | uint64_t{kept->has_failed} << 1
                                             | uint64_t{kept->is_fetching})));
  return digest;
}

session_cache::session_cache(std::unique_ptr<prefix_cache> inner, uint32_t page_size)
  : inner_(std::move(inner)), page_size_(page_size) {
  HICACHE_CHECK(inner_ && page_size_ > 0);
}

// -- who is meant -------------------------------------------------------------

result<session_cache::session*> session_cache::find(const session_ref& ref) {
  const auto entry = sessions_.find(ref.generation);
  if (entry == sessions_.end() || entry->second.name != ref.session)
    return fail(ec::unknown_id, name_of(ref) + " is not open (any more)");
  return &entry->second;
}

result<session_cache::session*> session_cache::session_of(request_id request) {
  if (const auto entry = turns_.find(request); entry != turns_.end())
    return entry->second;
  if ((request & inside) != 0)
    return fail(ec::unknown_id, name_of(request) + " is not open");
  return nullptr;
}

template <class Result, class Request>
result<Result> session_cache::forward(result<Result> (prefix_cache::*operation)(const Request&),
                                      const Request& asked, const session* owner) {
  if (owner == nullptr || !owner->is_streaming)
    return ((*inner_).*operation)(asked);
  auto renumbered = asked;
  renumbered.request = owner->inner();
  auto outcome = ((*inner_).*operation)(renumbered);
  if (!outcome)
    rename(outcome.error(), renumbered.request, asked.request);
  return outcome;
}

void session_cache::changed(session& owner) {
  const auto digest = owner.digest();
  sessions_digest_ += digest - owner.recorded;
  owner.recorded = digest;
}

void session_cache::give_up(session& owner) {
  HICACHE_CHECK(inner_->release(owner.inner()));
  owner.kept.reset();
  --slots_;
}

// -- match --------------------------------------------------------------------

result<match_result> session_cache::match(const match_request& asked) {
  if ((asked.request & inside) != 0)
    return fail(ec::invalid_argument,
                name_of(asked.request) + ": numbers with the highest bit are reserved");
  if (turns_.contains(asked.request))
    return fail(ec::invalid_argument, name_of(asked.request) + " is open already");
  if (asked.session.session == 0)
    return inner_->match(asked);
  const auto found = find(asked.session);
  if (!found)
    return tl::unexpected{found.error()};
  auto& owner = **found;
  if (owner.turn)
    return fail(ec::invalid_argument,
                name_of(asked.session) + " has an open request: " + name_of(*owner.turn));
  auto outcome = begin(asked, owner);
  if (outcome) {
    owner.turn = asked.request;
    turns_.emplace(asked.request, &owner);
  }
  changed(owner);
  return outcome;
}

result<match_result> session_cache::begin(const match_request& asked, session& owner) {
  if (!owner.is_streaming)
    return inner_->match(asked);
  // Whatever could fail has to fail before the slot is given up. Taking no pages shows whether the
  // inner cache knows the number.
  if (!asked.tokens || asked.limit > asked.tokens->size())
    return fail(ec::invalid_argument, name_of(asked.request) + ": the limit exceeds the tokens");
  if (asked.tokens->size() > limits::request_tokens)
    return fail(ec::limit_reached, name_of(asked.request) + " has too many tokens");
  if (inner_->allocate({asked.request, 0}))
    return fail(ec::invalid_argument, name_of(asked.request) + " is open already");
  if (owner.kept) {
    if (auto resumed = resume(asked, owner)) {
      owner.kept->resumed = resumed->device_tokens;
      owner.kept->prompt_tokens = asked.tokens->size();
      return *resumed;
    }
    give_up(owner);
  }
  auto outcome = forward(&prefix_cache::match, asked, &owner);
  if (outcome) {
    ++slots_;
    auto& kept = owner.kept.emplace(slot{});
    kept.ns = asked.ns;
    if (outcome->host_tokens > 0)
      kept.host_end = outcome->device_tokens + outcome->host_tokens;
  }
  return outcome;
}

std::optional<match_result> session_cache::resume(const match_request& asked,
                                                  const session& owner) const {
  const auto& kept = *owner.kept;
  const auto held = kept.tokens->size();
  if (is_stopped_ || asked.ns != kept.ns || asked.tokens->size() < held
      || equal_tokens(asked.tokens->data(), kept.tokens->data(), held) < held)
    return std::nullopt;
  // The engine computes what follows the answer, and it must not write to pages that others read.
  const auto shared = kept.node == 0 ? 0 : held / page_size_ * page_size_;
  const auto count = std::min<uint64_t>(held, asked.limit);
  if (count == 0 || count < shared)
    return std::nullopt;
  return match_result{count, 0, first_pages(kept.pages, count, page_size_), kept.node};
}

// -- the turn goes on ---------------------------------------------------------

result<prefetch_result> session_cache::prefetch(request_id request) {
  const auto found = session_of(request);
  if (!found)
    return tl::unexpected{found.error()};
  auto* owner = *found;
  if (owner == nullptr || !owner->kept)
    return inner_->prefetch(request);
  if (owner->kept->resumed > 0)
    return prefetch_result{};
  auto outcome = inner_->prefetch(owner->inner());
  if (outcome && outcome->tokens > 0) {
    owner->kept->is_fetching = true;
    changed(*owner);
  }
  return outcome;
}

result<schedule_result> session_cache::schedule(request_id request) {
  const auto found = session_of(request);
  if (!found)
    return tl::unexpected{found.error()};
  const auto* owner = *found;
  if (owner == nullptr || !owner->kept)
    return inner_->schedule(request);
  return owner->kept->resumed > 0 ? schedule_result{true} : inner_->schedule(owner->inner());
}

result<load_result> session_cache::load_back(const load_request& asked) {
  const auto found = session_of(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  const auto* owner = *found;
  auto outcome = forward(&prefix_cache::load_back, asked, owner);
  if (outcome && owner != nullptr && owner->kept && owner->kept->resumed > 0) {
    // There is nothing to load, but what the slot holds may still be on its way.
    outcome->device_tokens = owner->kept->resumed;
    outcome->device_pages = first_pages(owner->kept->pages, outcome->device_tokens, page_size_);
  }
  return outcome;
}

result<allocate_result> session_cache::allocate(const allocate_request& asked) {
  const auto found = session_of(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  return forward(&prefix_cache::allocate, asked, *found);
}

result<insert_result> session_cache::insert(const insert_request& asked) {
  const auto found = session_of(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  auto* owner = *found;
  if (owner != nullptr && owner->kept && owner->kept->tokens && asked.tokens) {
    const auto& kept = *owner->kept;
    const auto count
      = std::min<uint64_t>({kept.resumed, kept.tokens->size(), asked.tokens->size()});
    if (equal_tokens(asked.tokens->data(), kept.tokens->data(), count) < count)
      return fail(ec::invalid_argument,
                  name_of(asked.request) + ": the tokens do not begin with those of the match");
  }
  auto outcome = forward(&prefix_cache::insert, asked, owner);
  if (!outcome || owner == nullptr)
    return outcome;
  if (owner->kept) {
    auto& kept = *owner->kept;
    kept.pages = outcome->device_pages;
    kept.node = outcome->node;
    kept.tokens = nullptr;
    if (asked.tokens->size() > kept.host_end) {
      kept.tokens = asked.tokens;
      kept.host_end = 0;
    }
  } else if (outcome->node != 0) {
    const auto older = std::exchange(owner->reference, *inner_->refer(outcome->node));
    if (older != 0)
      inner_->drop_reference(older);
  }
  changed(*owner);
  return outcome;
}

result<void> session_cache::release(request_id request) {
  const auto found = session_of(request);
  if (!found)
    return tl::unexpected{found.error()};
  auto* owner = *found;
  if (owner == nullptr || !owner->kept) {
    if (auto released = inner_->release(request); !released || owner == nullptr)
      return released;
  } else if (!owner->kept->tokens || owner->kept->is_fetching || owner->kept->has_failed
             || is_stopped_) {
    give_up(*owner);
  }
  turns_.erase(request);
  owner->turn.reset();
  changed(*owner);
  return {};
}

page_list session_cache::pages_of(request_id request) const {
  const auto turn = turns_.find(request);
  return inner_->pages_of(turn == turns_.end() || !turn->second->kept ? request
                                                                      : turn->second->inner());
}

result<request_provenance> session_cache::provenance(request_id request) const {
  const auto turn = turns_.find(request);
  if (turn == turns_.end() || !turn->second->kept)
    return inner_->provenance(request);
  const auto& kept = *turn->second->kept;
  if (kept.resumed == 0 || kept.has_failed)
    return inner_->provenance(turn->second->inner());
  auto told = request_provenance{};
  told.l1_tokens = kept.resumed;
  told.computed_tokens = kept.prompt_tokens - kept.resumed;
  return told;
}

// -- sessions -----------------------------------------------------------------

result<session_result> session_cache::open_session(const open_session_request& asked) {
  if (asked.session == 0)
    return fail(ec::invalid_argument, "session 0 names none");
  if (const auto open = generations_.find(asked.session); open != generations_.end())
    return fail(ec::invalid_argument, name_of({asked.session, open->second}) + " is open already");
  if (sessions_.size() >= limits::sessions_open)
    return fail(ec::limit_reached, "too many open sessions");
  auto& owner = sessions_[++last_generation_];
  owner.name = asked.session;
  owner.generation = last_generation_;
  owner.is_streaming = asked.streaming;
  generations_.emplace(asked.session, last_generation_);
  changed(owner);
  return session_result{last_generation_};
}

result<session_result> session_cache::close_session(const close_session_request& asked) {
  const auto found = find(asked.session);
  if (!found)
    return tl::unexpected{found.error()};
  auto& owner = **found;
  if (owner.turn)
    return fail(ec::invalid_argument,
                name_of(asked.session) + " has an open request: " + name_of(*owner.turn));
  if (owner.kept)
    give_up(owner);
  if (owner.reference != 0)
    inner_->drop_reference(owner.reference);
  sessions_digest_ -= owner.recorded;
  generations_.erase(owner.name);
  sessions_.erase(asked.session.generation);
  return session_result{asked.session.generation};
}

result<void> session_cache::clear() {
  // If the inner cache is going to refuse, nothing may be given up.
  const auto is_idle = turns_.empty() && inner_->stats().requests_open == slots_
                       && handle_locks_ == 0 && !inner_->in_flight()
                       && inner_->stats().quarantined == 0;
  for (auto& [generation, owner] : sessions_)
    if (is_idle && owner.kept) {
      give_up(owner);
      changed(owner);
    }
  auto cleared = inner_->clear();
  is_stopped_ &= !cleared;
  return cleared;
}

// -- steps and state ----------------------------------------------------------

std::vector<ready_request> session_cache::step(const step_facts& facts,
                                               std::span<const page_list> arrived) {
  auto ready = inner_->step(facts, arrived);
  for (auto& each : ready) {
    if ((each.request & inside) == 0)
      continue;
    auto& owner = sessions_.at(each.request & ~inside);
    HICACHE_CHECK(owner.turn && owner.kept);
    each.request = *owner.turn;
    // The request was matched again, so an insert before this moment counts no more.
    auto& kept = *owner.kept;
    kept.is_fetching = false;
    kept.tokens = nullptr;
    kept.host_end = each.host_tokens > 0 ? each.device_tokens + each.host_tokens : 0;
    changed(owner);
  }
  failed_.clear();
  const auto lost = inner_->failed();
  for (const auto request : std::vector(lost.begin(), lost.end()))
    lose(request);
  std::ranges::sort(failed_);
  return ready;
}

void session_cache::lose(request_id request) {
  if ((request & inside) == 0) {
    failed_.push_back(request);
    return;
  }
  auto& owner = sessions_.at(request & ~inside);
  if (owner.turn) {
    owner.kept->has_failed = true;
    failed_.push_back(*owner.turn);
  } else {
    give_up(owner);
  }
  changed(owner);
}

std::span<const request_id> session_cache::failed() const noexcept {
  return failed_;
}

void session_cache::stop_serving() noexcept {
  is_stopped_ = true;
  inner_->stop_serving();
}

uint64_t session_cache::digest() const noexcept {
  return mix(mix(inner_->digest(), sessions_digest_), mix(last_generation_, sessions_.size()));
}

void session_cache::check_invariants() const {
  inner_->check_invariants();
  auto digests = uint64_t{0};
  auto slots = uint64_t{0};
  auto turns = size_t{0};
  for (const auto& [generation, owner] : sessions_) {
    HICACHE_CHECK(owner.generation == generation && generations_.at(owner.name) == generation);
    HICACHE_CHECK(owner.recorded == owner.digest());
    digests += owner.recorded;
    if (owner.turn) {
      ++turns;
      HICACHE_CHECK(turns_.at(*owner.turn) == &owner);
      HICACHE_CHECK(owner.kept.has_value() == owner.is_streaming);
    }
    if (owner.kept) {
      ++slots;
      HICACHE_CHECK(owner.is_streaming && (owner.turn || owner.kept->tokens));
      HICACHE_CHECK(!owner.kept->tokens
                    || owner.kept->tokens->size() <= owner.kept->pages->size() * page_size_);
    }
  }
  HICACHE_CHECK(digests == sessions_digest_ && slots == slots_ && turns == turns_.size());
  HICACHE_CHECK(generations_.size() == sessions_.size());
  HICACHE_CHECK(inner_->stats().requests_open >= slots);
}

// -- what sessions do not change ----------------------------------------------

result<evict_result> session_cache::evict(const evict_request& asked) {
  return inner_->evict(asked);
}

result<pin_result> session_cache::pin(const pin_request& asked) {
  return inner_->pin(asked);
}

result<pin_result> session_cache::unpin(const unpin_request& asked) {
  return inner_->unpin(asked);
}

result<lock_result> session_cache::lock(node_id node) {
  auto outcome = inner_->lock(node);
  handle_locks_ += outcome ? 1 : 0;
  return outcome;
}

result<lock_result> session_cache::unlock(node_id node) {
  auto outcome = inner_->unlock(node);
  handle_locks_ -= outcome ? 1 : 0;
  return outcome;
}

result<backup_result> session_cache::backup(node_id node) {
  return inner_->backup(node);
}

result<load_node_result> session_cache::load_node(const load_node_request& asked) {
  return inner_->load_node(asked);
}

result<uint64_t> session_cache::refer(node_id node) {
  return inner_->refer(node);
}

void session_cache::drop_reference(uint64_t reference) {
  inner_->drop_reference(reference);
}

bool session_cache::in_flight() const noexcept {
  return inner_->in_flight();
}

std::span<const operation_id> session_cache::backing_up() const noexcept {
  return inner_->backing_up();
}

bool session_cache::has_pins() const noexcept {
  return inner_->has_pins();
}

std::span<const fetch_id> session_cache::fetching() const noexcept {
  return inner_->fetching();
}

std::span<const fetch_id> session_cache::fetching_later() const noexcept {
  return inner_->fetching_later();
}

std::optional<int64_t> session_cache::next_stop_ns() const noexcept {
  return inner_->next_stop_ns();
}

std::vector<tree_effect> session_cache::take_effects() {
  return inner_->take_effects();
}

std::vector<cache_event> session_cache::take_events() {
  return inner_->take_events();
}

void session_cache::change_storage(const storage_change& change) {
  inner_->change_storage(change);
}

tree_stats session_cache::stats() const noexcept {
  return inner_->stats();
}

std::vector<node_view> session_cache::nodes() const {
  return inner_->nodes();
}

} // namespace hicache
