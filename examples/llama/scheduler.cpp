#include "examples/llama/scheduler.hpp"

#include <algorithm>
#include <iterator>

namespace llama {

using namespace hicache;

namespace {

/// Turns without room for the only open sequence after which it fails: copies that make room need
/// some steps.
constexpr auto short_turns_max = uint64_t{100};

template <class Answer>
const Answer* answer_of(const tree_answer& answer) {
  return answer ? std::get_if<Answer>(&*answer) : nullptr;
}

} // namespace

// -- what arrived -----------------------------------------------------------------

void scheduler::add(completion_request request) {
  auto& added = sequences_.emplace_back();
  added.tokens = request.prompt;
  added.told = added.tokens.size();
  added.request = std::move(request);
}

void scheduler::abort(completion_id id) {
  if (const auto found = find_completion(id); found != sequences_.end())
    end(found, finish_reason::aborted);
}

void scheduler::take(const turn_input& input) {
  for (const auto& each : input.added)
    add(each);
  for (const auto id : input.aborted)
    abort(id);
  is_last_ = is_last_ || input.is_last;
  while (is_last_ && !sequences_.empty())
    end(sequences_.begin(), finish_reason::aborted);
}

scheduler::operations scheduler::open() {
  auto list = operations{};
  for (const auto number : std::exchange(released_, {}))
    list.emplace_back(release_request{number, after_});
  for (const auto& session : std::exchange(closed_, {}))
    list.emplace_back(close_session_request{session});
  opening_.clear();
  for (const auto& each : sequences_)
    if (const auto session = each.request.session;
        session != 0 && sessions_.try_emplace(session).second) {
      opening_.push_back(session);
      list.emplace_back(open_session_request{session, true});
    }
  asked_.clear();
  auto open = sequences_.size() - count(state::waiting);
  for (auto* each : in_order()) {
    if (open >= open_limit_.value_or(options_.max_open))
      break;
    if (each->now != state::waiting)
      continue;
    auto session = session_ref{each->request.session, 0};
    if (session.session != 0) {
      auto& known = sessions_.at(session.session);
      // Turns follow each other.
      if (known.generation == 0 || is_in_turn(session.session))
        continue;
      session.generation = known.generation;
      known.last_turn = last_number_ + 1;
    }
    ++open;
    each->number = ++last_number_;
    each->now = state::fetching;
    const auto tokens = std::make_shared<const std::vector<token_id>>(each->tokens);
    // The last token is not looked up: its output is the next token.
    list.emplace_back(
      match_request{each->number, {{}, each->request.salt}, tokens, tokens->size() - 1, session});
    list.emplace_back(prefetch_request{each->number});
    list.emplace_back(schedule_request{each->number});
    asked_.push_back(each->number);
  }
  return list;
}

void scheduler::opened(const tree_answers& answers) {
  auto at = answers.list.size() - 3 * asked_.size() - opening_.size();
  for (const auto session : opening_) {
    if (const auto* const opened = answer_of<session_result>(answers.list[at++])) {
      sessions_[session].generation = opened->generation;
      continue;
    }
    // Too many are open.
    sessions_.erase(session);
    close_idle_session();
  }
  for (const auto number : asked_) {
    auto* const which = find(number);
    const auto* const scheduled = answer_of<schedule_result>(answers.list[at + 2]);
    at += 3;
    if (scheduled == nullptr) {
      // Too many requests are open, for one: it waits.
      restart(*which);
      continue;
    }
    which->now = scheduled->ready ? state::ready : state::fetching;
  }
}

// -- room ---------------------------------------------------------------------------

scheduler::operations scheduler::make_room() {
  auto list = operations{};
  asked_.clear();
  auto running = count(state::running);
  for (auto* each : in_order()) {
    if (each->now == state::running && needs_page(*each)) {
      list.emplace_back(allocate_request{each->number, each->tokens.size(), each->pages.size()});
      asked_.push_back(each->number);
    } else if (each->now == state::ready && running < options_.max_running) {
      ++running;
      list.emplace_back(load_request{each->number});
      list.emplace_back(allocate_request{each->number, each->tokens.size()});
      asked_.push_back(each->number);
    }
  }
  return list;
}

void scheduler::made_room(const tree_answers& answers) {
  is_short_ = false;
  auto at = size_t{0};
  for (const auto number : asked_) {
    auto& which = *find(number);
    if (which.now == state::ready) {
      note_room(which, answers.list[at], answers.list[at + 1]);
      at += 2;
    } else {
      note_page(which, answers.list[at++]);
    }
  }
  if (is_short_)
    handle_shortage();
  else
    short_turns_ = 0;
}

void scheduler::note_room(sequence& which, const tree_answer& loaded,
                          const tree_answer& allocated) {
  const auto* const found = answer_of<load_result>(loaded);
  const auto* const made = answer_of<allocate_result>(allocated);
  if (found != nullptr && found->progress)
    which.loading = found->progress;
  if (found == nullptr || made == nullptr) {
    is_short_ = true;
    return;
  }
  which.now = state::running;
  which.pages = *made->l1_pages;
  which.computed_tokens = found->l1_tokens;
  which.settled_pages = found->l1_tokens / options_.page_size;
  if (!std::exchange(which.is_admitted_once, true))
    which.cached_tokens = found->l1_tokens;
  seek(which);
}

void scheduler::note_page(sequence& which, const tree_answer& allocated) {
  if (const auto* const made = answer_of<allocate_result>(allocated))
    which.pages.insert(which.pages.end(), made->l1_pages->begin(), made->l1_pages->end());
  else
    is_short_ = true;
}

void scheduler::handle_shortage() {
  if (std::ranges::any_of(sequences_, [this](const auto& x) {
        return x.now == state::receiving || (x.now == state::running && !needs_page(x));
      })) {
    short_turns_ = 0;
    return;
  }
  if (close_idle_session())
    return;
  // All wait for room. The first one keeps what it has; the others give theirs back.
  const auto all = in_order();
  const auto first
    = std::ranges::find_if(all, [](const auto* x) { return x->now >= state::ready; });
  for (auto* each : all)
    if (each != *first && each->now != state::waiting)
      restart(*each);
  open_limit_ = 1;
  if (++short_turns_ < short_turns_max)
    return;
  short_turns_ = 0;
  const auto stuck = std::ranges::find_if(sequences_, [&](const auto& x) { return &x == *first; });
  end(stuck, finish_reason::failed,
      "the KV of " + std::to_string((*first)->tokens.size())
        + " tokens does not fit into the device pool; expected a larger --device-pages");
}

// -- handoffs -----------------------------------------------------------------------

scheduler::handoff scheduler::describe(const sequence& which) {
  const auto& request = which.request;
  return {request.id,   request.prompt.size(),  which.computed_tokens + which.pass_tokens,
          which.pages,  request.receiver_pages, request.receiver_ranks,
          which.attempt};
}

template <class Predicate>
std::vector<scheduler::handoff> scheduler::describe_if(Predicate is_wanted) const {
  auto list = std::vector<handoff>{};
  for (const auto& each : sequences_)
    if (is_wanted(each))
      list.push_back(describe(each));
  return list;
}

std::vector<scheduler::handoff> scheduler::unopened() const {
  return describe_if([this](const auto& x) { return x.now == state::running && !may_compute(x); });
}

std::vector<scheduler::handoff> scheduler::handed_in_pass() const {
  return describe_if([](const auto& x) { return x.is_open && x.pass_tokens > 0; });
}

std::vector<scheduler::handoff> scheduler::receiving() const {
  return describe_if([](const auto& x) { return x.now == state::receiving; });
}

void scheduler::receive(completion_id id, token_id first) {
  auto& which = *find_completion(id);
  which.handed_tokens = which.tokens.size() - which.computed_tokens;
  which.computed_tokens = which.tokens.size();
  which.tokens.push_back(first);
  which.now = state::running;
  received_.push_back(which.number);
}

void scheduler::miss_handoff(completion_id id) {
  auto& which = *find_completion(id);
  which.now = state::running;
  ++which.attempt;
  seek(which);
}

void scheduler::seek(sequence& which) {
  const auto lacks = which.tokens.size() - which.computed_tokens;
  // What a session has kept may end within a page.
  if (which.attempt >= which.request.prefill.size() || which.request.session != 0
      || lacks < options_.page_size || which.tokens.size() != which.request.prompt.size())
    return;
  which.now = state::receiving;
  auto& output = outputs_.emplace_back();
  output.id = which.request.id;
  output.attempt = which.attempt;
  output.known_pages = which.computed_tokens / options_.page_size;
}

bool scheduler::may_compute(const sequence& which) const {
  return which.is_open || which.request.receiver_ranks == 0;
}

void scheduler::fail(completion_id id, std::string why) {
  end(find_completion(id), finish_reason::failed, std::move(why));
}

// -- computing ----------------------------------------------------------------------

std::vector<slice> scheduler::batch() {
  auto slices = std::vector<slice>{};
  in_pass_.clear();
  auto left = options_.pass_tokens;
  const auto take = [&](sequence& which) {
    which.pass_tokens = std::min<uint64_t>(which.tokens.size() - which.computed_tokens, left);
    if (which.pass_tokens == 0)
      return;
    left -= which.pass_tokens;
    const auto end = which.computed_tokens + which.pass_tokens;
    slices.push_back({std::span{which.tokens}.subspan(which.computed_tokens, which.pass_tokens),
                      which.computed_tokens, which.pages, which.loading.get(),
                      end == which.tokens.size()});
    in_pass_.push_back(which.number);
  };
  // Decoding sequences first: each waits for one token only.
  for (const auto is_decoding : {true, false})
    for (auto* each : in_order())
      if (each->now == state::running && each->is_decoding() == is_decoding && !needs_page(*each)
          && may_compute(*each))
        take(*each);
  return slices;
}

void scheduler::computed(const pass_result& result, size_t vocabulary) {
  after_ = result.after;
  auto row = size_t{0};
  auto load_wait = result.load_wait; // Counted once, however many waited.
  for (const auto number : in_pass_) {
    auto& which = *find(number);
    const auto is_whole = which.computed_tokens + which.pass_tokens == which.tokens.size();
    const auto scores = std::span{result.scores}.subspan(is_whole ? row * vocabulary : 0);
    row += is_whole ? 1 : 0;
    if (which.loading && !result.is_loaded) {
      restart(which);
      continue;
    }
    if (std::exchange(which.loading, nullptr))
      which.load_wait += std::exchange(load_wait, {});
    which.computed_tokens += std::exchange(which.pass_tokens, 0);
    if (is_whole)
      which.tokens.push_back(
        static_cast<token_id>(std::ranges::max_element(scores.first(vocabulary)) - scores.begin()));
  }
}

scheduler::operations scheduler::insert() {
  auto list = operations{};
  asked_.clear();
  auto numbers = std::exchange(received_, {});
  std::erase_if(numbers, [this](auto x) { return std::ranges::count(in_pass_, x) > 0; });
  numbers.insert(numbers.end(), in_pass_.begin(), in_pass_.end());
  for (const auto number : numbers) {
    const auto* const which = find(number);
    // Pages are inserted when they are full, without waiting for the end of the completion: so the
    // write policy brings them to L3 while it goes on. A session keeps what is inserted at its end,
    // to the token.
    if (which == nullptr
        || (which->computed_tokens / options_.page_size <= which->settled_pages
            && (which->request.session == 0 || !is_complete(*which))))
      continue;
    auto wanted = insert_request{};
    wanted.request = number;
    wanted.tokens = computed_part(*which);
    wanted.priority = which->request.priority;
    wanted.chunked = which->computed_tokens < which->request.prompt.size();
    wanted.known_pages = which->settled_pages;
    wanted.after = after_;
    list.emplace_back(std::move(wanted));
    asked_.push_back(number);
  }
  return list;
}

void scheduler::inserted(const tree_answers& answers) {
  for (auto i = size_t{0}; i < asked_.size(); ++i) {
    auto& which = *find(asked_[i]);
    const auto* const made = answer_of<insert_result>(answers.list[i]);
    if (made == nullptr)
      continue;
    // What another sequence inserted before takes the place of this one's own pages.
    std::ranges::copy(*made->l1_pages,
                      which.pages.begin() + static_cast<ptrdiff_t>(which.settled_pages));
    which.settled_pages = which.computed_tokens / options_.page_size;
  }
}

// -- facts --------------------------------------------------------------------------

void scheduler::stepped(const step_result& facts) {
  for (const auto& each : facts.ready)
    if (auto* const which = find(each.request); which != nullptr && which->now == state::fetching)
      which->now = state::ready;
  for (const auto number : facts.failed)
    if (auto* const which = find(number))
      restart(*which);
  for (auto next = sequences_.begin(); next != sequences_.end();)
    tell(next++);
}

void scheduler::restart_all() {
  for (auto& each : sequences_)
    if (each.now != state::waiting)
      restart(each);
}

bool scheduler::can_compute() const {
  // One that waits for room has it only after a copy, which a step waits for.
  return short_turns_ == 0
         && (!opening_.empty() || std::ranges::any_of(sequences_, [this](const auto& x) {
              return x.now == state::ready || (x.now == state::running && may_compute(x));
            }));
}

bool scheduler::awaits_handoffs() const {
  return released_.empty() && closed_.empty()
         && std::ranges::all_of(sequences_, [this](const auto& x) {
              return x.now == state::receiving || (x.now == state::running && !may_compute(x));
            });
}

void scheduler::tell(sequence_list::iterator which) {
  if (which->is_revoked)
    return end(which, finish_reason::failed, "the cache lost pages that were handed over");
  const auto& tokens = which->tokens;
  if (which->told == tokens.size())
    return;
  auto output
    = completion_output{which->request.id, {}, finish_reason::none, which->cached_tokens, {}};
  output.handed_tokens = which->handed_tokens;
  output.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(which->told), tokens.end());
  which->told = tokens.size();
  output.load_wait = std::exchange(which->load_wait, {});
  outputs_.push_back(std::move(output));
  if (is_complete(*which))
    end(which, is_at_end(*which) ? finish_reason::stop : finish_reason::length);
}

// -- sequences ----------------------------------------------------------------------

scheduler::sequence* scheduler::find(request_id number) {
  const auto found = std::ranges::find(sequences_, number, &sequence::number);
  return found == sequences_.end() ? nullptr : &*found;
}

scheduler::sequence_list::iterator scheduler::find_completion(completion_id id) {
  return std::ranges::find_if(sequences_, [id](const auto& x) { return x.request.id == id; });
}

uint64_t scheduler::count(state wanted) const {
  return static_cast<uint64_t>(std::ranges::count(sequences_, wanted, &sequence::now));
}

std::vector<scheduler::sequence*> scheduler::in_order() {
  auto order = std::vector<sequence*>{};
  for (auto& each : sequences_)
    order.push_back(&each);
  std::ranges::stable_sort(order, [](const auto* a, const auto* b) {
    return std::pair{-int64_t{a->request.priority}, a->now != state::running}
           < std::pair{-int64_t{b->request.priority}, b->now != state::running};
  });
  return order;
}

void scheduler::restart(sequence& which) {
  if (which.now == state::receiving) {
    dropped_.push_back(which.request.id);
    ++which.attempt;
  }
  which.is_revoked = std::exchange(which.is_open, false);
  // What was computed since the last step may be of pages that are lost.
  which.tokens.resize(which.told);
  released_.push_back(std::exchange(which.number, 0));
  which.now = state::waiting;
  which.pages.clear();
  which.settled_pages = which.computed_tokens = which.pass_tokens = 0;
  which.loading = nullptr;
}

void scheduler::end(sequence_list::iterator which, finish_reason why, std::string error) {
  if (which->now == state::receiving)
    dropped_.push_back(which->request.id);
  outputs_.push_back(
    {which->request.id, {}, why, which->cached_tokens, std::move(error), which->handed_tokens});
  if (which->now != state::waiting)
    released_.push_back(which->number);
  const auto [session, ends] = std::pair{which->request.session, which->request.ends_session};
  sequences_.erase(which);
  open_limit_.reset();
  if (const auto found = sessions_.find(session);
      ends && found != sessions_.end() && found->second.generation != 0 && !is_in_turn(session)) {
    closed_.push_back({session, found->second.generation});
    sessions_.erase(found);
  }
}

bool scheduler::is_in_turn(session_id session) const {
  return std::ranges::any_of(sequences_, [session](const auto& x) {
    return x.request.session == session && x.now != state::waiting;
  });
}

bool scheduler::close_idle_session() {
  auto oldest = sessions_.end();
  for (auto each = sessions_.begin(); each != sessions_.end(); ++each)
    if (each->second.generation != 0 && !is_in_turn(each->first)
        && (oldest == sessions_.end() || each->second.last_turn < oldest->second.last_turn))
      oldest = each;
  if (oldest == sessions_.end())
    return false;
  closed_.push_back({oldest->first, oldest->second.generation});
  sessions_.erase(oldest);
  return true;
}

bool scheduler::is_at_end(const sequence& which) const {
  return !which.request.ignores_end
         && std::ranges::find(options_.end_tokens, which.tokens.back())
              != options_.end_tokens.end();
}

bool scheduler::is_complete(const sequence& which) const {
  const auto added = which.tokens.size() - which.request.prompt.size();
  return added > 0
         && (is_at_end(which) || added >= which.request.max_tokens
             || which.tokens.size() >= options_.positions);
}

token_buffer scheduler::computed_part(const sequence& which) const {
  return std::make_shared<const std::vector<token_id>>(
    which.tokens.begin(), which.tokens.begin() + static_cast<ptrdiff_t>(which.computed_tokens));
}

bool scheduler::needs_page(const sequence& which) const {
  return which.pages.size() * options_.page_size < which.tokens.size();
}

} // namespace llama
