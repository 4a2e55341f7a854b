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

// -- questions and answers --------------------------------------------------------

void scheduler::ask(operations wanted, continuation then) {
  questions_.emplace_back(wanted.size(), std::move(then));
  std::ranges::move(wanted, std::back_inserter(list_));
}

void scheduler::answered(const tree_answers& answers) {
  auto left = answers_of_group{answers.list};
  for (const auto& [size, then] : std::exchange(questions_, {})) {
    then(left.first(size));
    left = left.subspan(size);
  }
}

// -- what arrived -----------------------------------------------------------------

void scheduler::take(const turn_input& input) {
  for (const auto& each : input.added) {
    auto& added = sequences_.emplace_back();
    added.request = each;
    added.tokens = each.prompt;
    added.told = added.tokens.size();
  }
  for (const auto id : input.aborted)
    if (const auto found = find_completion(id); found != sequences_.end())
      end(found, finish_reason::aborted);
  is_last_ = is_last_ || input.is_last;
  while (is_last_ && !sequences_.empty())
    end(sequences_.begin(), finish_reason::aborted);
}

scheduler::operations scheduler::open() {
  const auto ignore = [](answers_of_group) {};
  for (const auto number : std::exchange(released_, {}))
    ask({release_request{number, after_}}, ignore);
  for (const auto& session : std::exchange(closed_, {}))
    ask({close_session_request{session}}, ignore);
  opens_sessions_ = false;
  for (const auto& each : sequences_)
    if (const auto session = each.request.session;
        session != 0 && sessions_.try_emplace(session).second)
      open_session(session);
  auto open = static_cast<uint64_t>(
    std::ranges::count_if(sequences_, [](const auto& x) { return x.now != state::waiting; }));
  for (auto* each : in_order()) {
    if (open >= open_limit_)
      break;
    const auto session = each->request.session;
    // Turns of a session follow each other.
    if (each->now != state::waiting || (session != 0 && !is_between_turns(session)))
      continue;
    look_up(*each);
    ++open;
  }
  return std::exchange(list_, {});
}

void scheduler::open_session(session_id session) {
  opens_sessions_ = true;
  ask({open_session_request{session, true}}, [this, session](answers_of_group answers) {
    if (const auto* const opened = answer_of<session_result>(answers[0])) {
      sessions_[session].generation = opened->generation;
      return;
    }
    // Too many are open.
    sessions_.erase(session);
    close_idle_session();
  });
}

void scheduler::look_up(sequence& which) {
  which.number = ++last_number_;
  which.now = state::fetching;
  // Number 0 is no session, and its generation stays 0.
  auto& known = sessions_[which.request.session];
  known.last_turn = which.number;
  const auto session = session_ref{which.request.session, known.generation};
  const auto tokens = std::make_shared<const std::vector<token_id>>(which.tokens);
  // The last token is not looked up: its output is the next token.
  ask({match_request{which.number, {{}, which.request.salt}, tokens, tokens->size() - 1, session},
       prefetch_request{which.number}, schedule_request{which.number}},
      [this, &which](answers_of_group answers) {
        const auto* const scheduled = answer_of<schedule_result>(answers[2]);
        if (scheduled == nullptr)
          return restart(which); // Too many requests are open, for one: it waits.
        which.now = scheduled->ready ? state::ready : state::fetching;
      });
}

// -- room ---------------------------------------------------------------------------

scheduler::operations scheduler::make_room() {
  is_short_ = false;
  for (auto* each : in_order()) {
    if (each->now == state::running && needs_page(*each))
      ask_for_page(*each);
    else if (each->now == state::ready)
      ask_for_room(*each);
  }
  // After the answers to all others.
  ask({}, [this](answers_of_group) {
    const auto goes_on = [this](const sequence& x) {
      return x.is_receiving() || (x.now == state::running && !needs_page(x));
    };
    if (is_short_ && std::ranges::none_of(sequences_, goes_on))
      handle_shortage();
    else
      short_turns_ = 0;
  });
  return std::exchange(list_, {});
}

void scheduler::ask_for_page(sequence& which) {
  ask({allocate_request{which.number, which.tokens.size(), which.pages.size()}},
      [this, &which](answers_of_group answers) {
        if (const auto* const made = answer_of<allocate_result>(answers[0]))
          std::ranges::copy(*made->l1_pages, std::back_inserter(which.pages));
        else
          is_short_ = true;
      });
}

void scheduler::ask_for_room(sequence& which) {
  ask({load_request{which.number}, allocate_request{which.number, which.tokens.size()}},
      [this, &which](answers_of_group answers) {
        const auto* const found = answer_of<load_result>(answers[0]);
        const auto* const made = answer_of<allocate_result>(answers[1]);
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
        if (!which.cached_tokens)
          which.cached_tokens = found->l1_tokens;
        seek(which);
      });
}

void scheduler::handle_shortage() {
  if (close_idle_session())
    return;
  // All wait for room. The first one keeps what it has; the others give theirs back.
  const auto all = in_order();
  const auto* const first
    = *std::ranges::find_if(all, [](const auto* x) { return x->now >= state::ready; });
  for (auto* each : all)
    if (each != first && each->now != state::waiting)
      restart(*each);
  open_limit_ = 1;
  if (++short_turns_ < short_turns_max)
    return;
  short_turns_ = 0;
  fail(first->request.id,
       "the KV of " + std::to_string(first->tokens.size())
         + " tokens does not fit into the device pool; expected a larger --device-pages");
}

// -- handoffs -----------------------------------------------------------------------

scheduler::sequence_list scheduler::list(bool (sequence::*is_wanted)() const) const {
  auto found = sequence_list{};
  for (const auto& each : sequences_)
    if ((each.*is_wanted)())
      found.push_back(&each);
  return found;
}

void scheduler::receive(completion_id id, token_id first) {
  auto& which = *find_completion(id);
  which.handed_tokens = which.tokens.size() - which.computed_tokens;
  which.computed_tokens = which.tokens.size();
  which.tokens.push_back(first);
  which.now = state::running;
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
  auto& output = output_of(which);
  output.attempt = which.attempt;
  output.known_pages = which.computed_tokens / options_.page_size;
}

// -- computing ----------------------------------------------------------------------

std::vector<slice> scheduler::batch() {
  auto slices = std::vector<slice>{};
  in_pass_.clear();
  auto left = options_.pass_tokens;
  // Decoding sequences first: each waits for one token only.
  for (const auto is_decoding : {true, false})
    for (auto* each : in_order()) {
      if (each->now != state::running || each->is_decoding() != is_decoding || needs_page(*each)
          || !each->may_compute() || left == 0)
        continue;
      each->pass_tokens = std::min<uint64_t>(each->tokens.size() - each->computed_tokens, left);
      left -= each->pass_tokens;
      slices.push_back({std::span{each->tokens}.subspan(each->computed_tokens, each->pass_tokens),
                        each->computed_tokens, each->pages, each->loading.get(),
                        each->tokens_after_pass() == each->tokens.size()});
      in_pass_.push_back(each);
    }
  return slices;
}

void scheduler::computed(const pass_result& result, size_t vocabulary) {
  after_ = result.after;
  auto left = std::span{result.scores};
  for (auto* each : in_pass_) {
    const auto is_whole = each->tokens_after_pass() == each->tokens.size();
    const auto scores = left.first(is_whole ? vocabulary : 0);
    left = left.subspan(scores.size());
    if (each->loading && !result.is_loaded) {
      restart(*each);
      continue;
    }
    each->loading = nullptr;
    each->computed_tokens += std::exchange(each->pass_tokens, 0);
    if (is_whole)
      each->tokens.push_back(
        static_cast<token_id>(std::ranges::max_element(scores) - scores.begin()));
  }
}

scheduler::operations scheduler::insert() {
  for (auto& each : sequences_) {
    // Pages are inserted when they are full, without waiting for the end of the completion: so the
    // write policy brings them to L3 while it goes on. A session keeps what is inserted at its end,
    // to the token.
    if (each.now != state::running
        || (each.computed_tokens / options_.page_size <= each.settled_pages
            && (each.request.session == 0 || finish_of(each) == finish_reason::none)))
      continue;
    auto wanted = insert_request{};
    wanted.request = each.number;
    wanted.tokens = std::make_shared<const std::vector<token_id>>(
      each.tokens.begin(), each.tokens.begin() + static_cast<ptrdiff_t>(each.computed_tokens));
    wanted.priority = each.request.priority;
    wanted.chunked = each.computed_tokens < each.request.prompt.size();
    wanted.known_pages = each.settled_pages;
    wanted.after = after_;
    ask({wanted}, [this, &each](answers_of_group answers) {
      const auto* const made = answer_of<insert_result>(answers[0]);
      if (made == nullptr)
        return;
      // What another sequence inserted before takes the place of this one's own pages.
      std::ranges::copy(*made->l1_pages,
                        each.pages.begin() + static_cast<ptrdiff_t>(each.settled_pages));
      each.settled_pages = each.computed_tokens / options_.page_size;
    });
  }
  return std::exchange(list_, {});
}

// -- facts --------------------------------------------------------------------------

void scheduler::stepped(const step_result& facts) {
  for (auto& each : sequences_) {
    if (each.now == state::fetching
        && std::ranges::count(facts.ready, each.number, &ready_request::request) > 0)
      each.now = state::ready;
    if (std::ranges::count(facts.failed, each.number) > 0)
      restart(each);
  }
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
         && (opens_sessions_ || std::ranges::any_of(sequences_, [](const auto& x) {
               return x.now == state::ready || (x.now == state::running && x.may_compute());
             }));
}

bool scheduler::is_idle() const {
  return released_.empty() && closed_.empty() && std::ranges::all_of(sequences_, [](const auto& x) {
           return x.is_receiving() || x.awaits_receiver();
         });
}

void scheduler::tell(place which) {
  if (which->is_revoked)
    return end(which, finish_reason::failed, "the cache lost pages that were handed over");
  if (which->told == which->tokens.size())
    return;
  auto& output = output_of(*which);
  output.tokens.assign(which->tokens.begin() + static_cast<ptrdiff_t>(which->told),
                       which->tokens.end());
  which->told = which->tokens.size();
  if (const auto why = finish_of(*which); why != finish_reason::none)
    end(which, why);
}

completion_output& scheduler::output_of(const sequence& which) {
  auto& output = outputs_.emplace_back();
  output.id = which.request.id;
  output.cached_tokens = which.cached_tokens.value_or(0);
  output.handed_tokens = which.handed_tokens;
  return output;
}

// -- sequences ----------------------------------------------------------------------

scheduler::place scheduler::find_completion(completion_id id) {
  return std::ranges::find_if(sequences_, [id](const auto& x) { return x.request.id == id; });
}

std::vector<sequence*> scheduler::in_order() {
  auto order = std::vector<sequence*>{};
  for (auto& each : sequences_)
    order.push_back(&each);
  std::ranges::stable_sort(order, {}, [](const auto* x) {
    return std::pair{-int64_t{x->request.priority}, x->now != state::running};
  });
  return order;
}

void scheduler::restart(sequence& which) {
  if (which.is_receiving()) {
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

void scheduler::end(place which, finish_reason why, std::string error) {
  if (which->is_receiving())
    dropped_.push_back(which->request.id);
  auto& output = output_of(*which);
  output.finish = why;
  output.error = std::move(error);
  if (which->now != state::waiting)
    released_.push_back(which->number);
  const auto [session, ends] = std::pair{which->request.session, which->request.ends_session};
  sequences_.erase(which);
  open_limit_ = options_.max_running;
  if (ends && is_between_turns(session))
    close_session(session);
}

bool scheduler::is_between_turns(session_id session) const {
  const auto found = sessions_.find(session);
  return found != sessions_.end() && found->second.generation != 0
         && std::ranges::none_of(sequences_, [session](const auto& x) {
              return x.request.session == session && x.now != state::waiting;
            });
}

void scheduler::close_session(session_id session) {
  closed_.push_back({session, sessions_.at(session).generation});
  sessions_.erase(session);
}

bool scheduler::close_idle_session() {
  const auto oldest = std::ranges::min_element(sessions_, {}, [this](const auto& x) {
    return is_between_turns(x.first) ? x.second.last_turn : UINT64_MAX;
  });
  if (oldest == sessions_.end() || !is_between_turns(oldest->first))
    return false;
  close_session(oldest->first);
  return true;
}

finish_reason scheduler::finish_of(const sequence& which) const {
  const auto added = which.tokens.size() - which.request.prompt.size();
  if (added == 0)
    return finish_reason::none;
  if (!which.request.ignores_end
      && std::ranges::count(options_.end_tokens, which.tokens.back()) > 0)
    return finish_reason::stop;
  return added >= which.request.max_tokens || which.tokens.size() >= options_.positions
           ? finish_reason::length
           : finish_reason::none;
}

bool scheduler::needs_page(const sequence& which) const {
  return which.pages.size() * options_.page_size < which.tokens.size();
}

} // namespace llama
