#include "backends/tiered/tier_batches.hpp"

#include "base/keys_of.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace hicache {

namespace {

/// Numbers of all objects of a batch.
std::vector<size_t> all_of(size_t objects) {
  auto numbers = std::vector<size_t>(objects);
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  return numbers;
}

/// Cuts off what a probe must not try.
/// @returns what was cut off
std::vector<size_t> cut_to_probe(store_breaker::pass pass, std::vector<size_t>& wanted) {
  auto rest = std::vector<size_t>{};
  if (pass.is_probe && wanted.size() > limits::probe_pages) {
    rest.assign(wanted.begin() + limits::probe_pages, wanted.end());
    wanted.resize(limits::probe_pages);
  }
  return rest;
}

/// The outcome to keep of two tiers that failed: a miss says least.
void keep_worse(result<void>& kept, const result<void>& other) {
  if (!kept && kept.error().code == ec::not_found)
    kept = other;
}

/// The outcome of an object that a tier may still have.
tl::unexpected<error> not_asked() {
  return fail(ec::peer_unreachable, "a tier of L3 was not asked or did not answer");
}

} // namespace

// -- look-ups ---------------------------------------------------------------------

void tier_lookup::begin(tiered_core& core) {
  if (!core.looks_up_in_parallel())
    return ask(core, 0);
  for (auto tier = size_t{0}; tier < tiers->size(); ++tier)
    if (const auto pass = core.admit(*(*tiers)[tier], store_call::exists))
      ask(core, tier, *pass, all_of(batch_.size()));
}

void tier_lookup::ask(tiered_core& core, size_t tier) {
  auto wanted = missing();
  for (; tier < tiers->size() && !wanted.empty(); ++tier)
    if (const auto pass = core.admit(*(*tiers)[tier], store_call::exists))
      return ask(core, tier, *pass, std::move(wanted));
}

void tier_lookup::ask(tiered_core& core, size_t tier, store_breaker::pass pass,
                      std::vector<size_t> wanted) {
  cut_to_probe(pass, wanted);
  const auto self = std::static_pointer_cast<tier_lookup>(shared_from_this());
  auto keys = batch_of(self, wanted);
  core.call<std::vector<result<store_place>>>(
    self, tier, store_call::exists, pass,
    [&](storage_backend& store, auto done) {
      return store.lookup(std::move(keys), until, std::move(done));
    },
    [self, &core, tier, wanted = std::move(wanted)](const auto& found) {
      {
        const auto lock = std::scoped_lock{self->mutex_};
        for (auto i = size_t{0}; i < wanted.size(); ++i)
          if (auto& place = self->places_[wanted[i]]; found[i] && (!place || place->tier > tier))
            place = tier_place{tier, (*self->tiers)[tier]->id, *found[i]};
      }
      if (!core.looks_up_in_parallel() && !core.is_expired(self))
        self->ask(core, tier + 1);
    });
}

std::vector<size_t> tier_lookup::missing() {
  const auto lock = std::scoped_lock{mutex_};
  auto wanted = std::vector<size_t>{};
  for (auto i = size_t{0}; i < places_.size(); ++i)
    if (!places_[i])
      wanted.push_back(i);
  return wanted;
}

void tier_lookup::answer(tiered_core& core) {
  const auto missed
    = error{core.is_expired(shared_from_this()) ? ec::deadline_exceeded : ec::not_found, {}};
  auto places = std::make_shared<std::vector<tier_place>>(places_.size());
  auto answers = std::vector<result<store_place>>(places_.size(), tl::unexpected{missed});
  for (auto i = size_t{0}; i < places_.size(); ++i)
    if (places_[i]) {
      const auto tier = static_cast<uint32_t>(places_[i]->tier);
      (*places)[i] = std::move(*places_[i]);
      answers[i] = store_place{places, static_cast<uint32_t>(i), tier};
    }
  done_(std::move(answers));
}

// -- reads ------------------------------------------------------------------------

std::vector<page_read> tier_read::make_list() {
  auto pages = batch_.list();
  for (auto& page : pages)
    found_in_.push_back(take_place(page));
  return pages;
}

size_t tier_read::take_place(page_read& page) const {
  const auto place = std::exchange(page.place, {});
  if (!place.answer)
    return 0;
  const auto& known
    = (*static_cast<const std::vector<tier_place>*>(place.answer.get()))[place.position];
  const auto at = std::ranges::find(*tiers, known.id, &tier_state::id);
  if (at == tiers->end())
    return 0;
  page.place = known.inner;
  return static_cast<size_t>(at - tiers->begin());
}

void tier_read::begin(tiered_core& core) {
  outcomes_.assign(batch_.size(), fail(ec::not_found));
  uses_ = has_list_ ? core.count_uses(objects_) : std::vector<uint32_t>(batch_.size());
  auto wanted = std::vector<std::vector<size_t>>(tiers->size());
  for (auto i = size_t{0}; i < batch_.size(); ++i)
    wanted[has_list_ ? found_in_[i] : 0].push_back(i);
  for (auto tier = size_t{0}; tier < wanted.size(); ++tier)
    read(core, tier, std::move(wanted[tier]));
}

void tier_read::read(tiered_core& core, size_t tier, std::vector<size_t> wanted) {
  for (; tier < tiers->size() && !wanted.empty(); ++tier) {
    const auto pass = core.admit(*(*tiers)[tier], store_call::get);
    if (!pass)
      continue;
    auto rest = cut_to_probe(*pass, wanted);
    const auto self = std::static_pointer_cast<tier_read>(shared_from_this());
    auto reads = batch_of(self, wanted);
    const auto positions = std::make_shared<const std::vector<size_t>>(std::move(wanted));
    auto progress = storage_backend::read_progress{};
    if (progress_)
      progress = [self, tier, positions](size_t first, auto outcomes) {
        self->report(tier, std::span{*positions}.subspan(first), outcomes);
      };
    core.call<std::vector<result<void>>>(
      self, tier, store_call::get, *pass,
      [&](storage_backend& store, auto done) {
        return store.read(std::move(reads), until, std::move(done), std::move(progress));
      },
      [self, &core, tier, positions](const auto& outcomes) {
        self->finish(core, tier, *positions, outcomes);
      });
    wanted = std::move(rest);
  }
}

void tier_read::finish(tiered_core& core, size_t tier, const std::vector<size_t>& wanted,
                       const std::vector<result<void>>& outcomes) {
  auto copies = std::vector<tier_copies>(tiers->size());
  auto failed = std::vector<size_t>{};
  for (auto k = size_t{0}; k < wanted.size(); ++k) {
    const auto i = wanted[k];
    if (outcomes[k]) {
      outcomes_[i] = {};
      if (tiers->size() > 1)
        core.copy(*tiers, objects_[i], tier, uses_[i], copies);
      continue;
    }
    keep_worse(outcomes_[i], outcomes[k]);
    // Parts of another length have it in every tier.
    if (outcomes[k].error().code != ec::invalid_argument && tier + 1 < tiers->size()) {
      objects_[i].place = {};
      failed.push_back(i);
    }
  }
  core.write_copies(*tiers, std::move(copies));
  if (!core.is_expired(shared_from_this()))
    read(core, tier + 1, std::move(failed));
}

void tier_read::report(size_t tier, std::span<const size_t> wanted,
                       std::span<const result<void>> outcomes) {
  // What is to be copied is reported at the end, because its parts are still read then.
  const auto is_over = [&](size_t k) {
    return outcomes[k].has_value() && !tiered_core::has_copies(*tiers, tier, uses_[wanted[k]]);
  };
  for (auto begin = size_t{0}; begin < outcomes.size();) {
    auto end = begin;
    while (end < outcomes.size() && is_over(end) && wanted[end] == wanted[begin] + (end - begin))
      ++end;
    if (end > begin)
      progress_(wanted[begin], outcomes.subspan(begin, end - begin));
    begin = std::max(end, begin + 1);
  }
}

void tier_read::answer(tiered_core& core) {
  if (core.is_expired(shared_from_this()))
    for (auto& outcome : outcomes_)
      keep_worse(outcome, fail(ec::deadline_exceeded));
  core.count(outcomes_, true);
  done_(std::move(outcomes_));
}

// -- writes -----------------------------------------------------------------------

std::vector<page_write> tier_write::make_list() {
  auto objects = batch_.list();
  std::ranges::transform(objects, bytes_.begin(),
                         [](const page_write& x) { return total_bytes(x.parts); });
  return objects;
}

void tier_write::begin(tiered_core& core) {
  outcomes_.resize(batch_.size());
  for (auto tier = size_t{0}; tier < tiers->size(); ++tier) {
    if ((*tiers)[tier]->rules.writes.which != tier_writes::rule::all)
      continue;
    if (const auto pass = core.admit(*(*tiers)[tier], store_call::set))
      write(core, tier, *pass);
  }
}

void tier_write::write(tiered_core& core, size_t tier, store_breaker::pass pass) {
  auto wanted = all_of(batch_.size());
  cut_to_probe(pass, wanted);
  // Children of what is left out are left out, too: nobody would find them.
  if (has_list_)
    wanted.resize(core.take_budget(*(*tiers)[tier], std::span{objects_}.first(wanted.size())));
  const auto self = std::static_pointer_cast<tier_write>(shared_from_this());
  auto writes = batch_of(self, wanted);
  core.call<std::vector<result<void>>>(
    self, tier, store_call::set, pass,
    [&](storage_backend& store, auto done) {
      return store.write(std::move(writes), until, std::move(done));
    },
    [self, &core, tier, wanted = std::move(wanted)](const auto& outcomes) {
      auto stored = uint64_t{0};
      auto failed = uint64_t{0};
      {
        const auto lock = std::scoped_lock{self->mutex_};
        for (auto k = size_t{0}; k < wanted.size(); ++k) {
          if (auto& outcome = self->outcomes_[wanted[k]]; !outcome || outcomes[k])
            outcome = outcomes[k];
          (outcomes[k] ? stored : failed) += self->bytes_[wanted[k]];
        }
      }
      core.end_write(*(*self->tiers)[tier], stored, failed);
    });
}

void tier_write::answer(tiered_core& core) {
  const auto untried
    = core.is_expired(shared_from_this())
        ? error{ec::deadline_exceeded, {}}
        : error{ec::store_full, "no tier takes the object now: by its budget or after failures"};
  auto answers = std::vector<result<void>>{};
  answers.reserve(outcomes_.size());
  for (auto& outcome : outcomes_)
    answers.push_back(outcome ? std::move(*outcome) : tl::unexpected{untried});
  core.count(answers, false);
  done_(std::move(answers));
}

// -- removals ---------------------------------------------------------------------

void tier_remove::begin(tiered_core& core) {
  outcomes_.resize(batch_.size());
  for (auto tier = size_t{0}; tier < tiers->size(); ++tier) {
    const auto pass = core.admit(*(*tiers)[tier], store_call::remove);
    if (!pass)
      continue;
    const auto self = std::static_pointer_cast<tier_remove>(shared_from_this());
    auto wanted = all_of(batch_.size());
    const auto rest = cut_to_probe(*pass, wanted);
    {
      const auto lock = std::scoped_lock{mutex_};
      for (const auto i : rest)
        outcomes_[i] = not_asked();
    }
    core.call<std::vector<result<void>>>(
      self, tier, store_call::remove, *pass,
      [&](storage_backend& store, auto done) {
        return store.remove(batch_of(self, std::move(wanted)), until, std::move(done));
      },
      [self](const auto& outcomes) {
        const auto lock = std::scoped_lock{self->mutex_};
        ++self->answers_;
        for (auto i = size_t{0}; i < outcomes.size(); ++i)
          if (!outcomes[i])
            self->outcomes_[i] = outcomes[i];
      });
  }
}

void tier_remove::answer(tiered_core&) {
  if (answers_ < tiers->size())
    for (auto& outcome : outcomes_)
      if (outcome)
        outcome = not_asked();
  done_(std::move(outcomes_));
}

// -- lists ------------------------------------------------------------------------

void tier_list::begin(tiered_core& core) {
  ask(core, parse(from_));
}

tier_list::position tier_list::parse(const std::string& from) {
  auto at = position{};
  at.has_failed = from.starts_with('!');
  const auto* const number = from.data() + (at.has_failed ? 1 : 0);
  std::from_chars(number, from.data() + from.size(), at.tier);
  if (const auto colon = from.find(':'); colon != std::string::npos)
    at.inner = from.substr(colon + 1);
  return at;
}

std::string tier_list::print(const position& at) {
  return (at.has_failed ? "!" : "") + std::to_string(at.tier) + ":" + at.inner;
}

void tier_list::ask(tiered_core& core, position at) {
  for (; at.tier < tiers->size(); at = {at.tier + 1, true, {}}) {
    const auto pass = core.admit(*(*tiers)[at.tier], store_call::exists);
    if (!pass)
      continue;
    const auto self = std::static_pointer_cast<tier_list>(shared_from_this());
    return core.call<result<object_list>>(
      self, at.tier, store_call::exists, *pass,
      [&](storage_backend& store, auto done) {
        return store.list(at.inner, until, std::move(done));
      },
      [self, &core, at](result<object_list> part) { self->take(core, at, std::move(part)); });
  }
  part_ = at.has_failed ? result<object_list>{not_asked()} : object_list{};
}

void tier_list::take(tiered_core& core, position at, result<object_list> part) {
  if (!part && part.error().code != ec::unsupported) {
    if (!core.is_expired(shared_from_this()))
      ask(core, {at.tier + 1, true, {}});
    return;
  }
  part_ = std::move(part);
  if (!part_)
    return;
  const auto next = part_->next.empty() ? position{at.tier + 1, at.has_failed, {}}
                                        : position{at.tier, at.has_failed, part_->next};
  part_->next = next.tier < tiers->size() || next.has_failed ? print(next) : std::string{};
  look_above(core, at.tier);
}

void tier_list::look_above(tiered_core& core, size_t tier) {
  if (part_->objects.empty())
    return;
  const auto keys = keys_of(part_->objects);
  is_above_.resize(keys.size());
  const auto self = std::static_pointer_cast<tier_list>(shared_from_this());
  for (auto above = size_t{0}; above < tier; ++above)
    if (const auto pass = core.admit(*(*tiers)[above], store_call::exists))
      core.call<std::vector<result<store_place>>>(
        self, above, store_call::exists, *pass,
        [&](storage_backend& store, auto done) {
          return store.lookup(keys, until, std::move(done));
        },
        [self](const auto& found) {
          const auto lock = std::scoped_lock{self->mutex_};
          for (auto i = size_t{0}; i < found.size(); ++i)
            self->is_above_[i] = self->is_above_[i] || found[i];
        });
}

void tier_list::answer(tiered_core&) {
  auto i = size_t{0};
  if (part_ && !is_above_.empty())
    std::erase_if(part_->objects, [&](const auto&) { return is_above_[i++]; });
  done_(std::move(part_));
}

} // namespace hicache
