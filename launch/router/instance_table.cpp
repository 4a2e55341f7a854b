#include "launch/router/instance_table.hpp"

#include "base/check.hpp"
#include "base/try.hpp"
#include "rpc/endpoint.hpp"

#include <absl/strings/str_split.h>

#include <algorithm>
#include <span>
#include <utility>

namespace hicache {

result<instance_options> parse_instance(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  const auto where = rpc::parse_endpoint(parts.front());
  if (!where || where->is_path() || where->port == 0)
    return fail(ec::invalid_argument,
                "'" + parts.front() + "' is no address of an instance; expected HOST:PORT");
  auto wanted = instance_options{};
  wanted.address = to_string(*where);
  for (const auto& part : std::span{parts}.subspan(1)) {
    const auto key = part.substr(0, part.find('=') + 1);
    const auto value = part.substr(key.size());
    if (key == "events=" && !value.empty())
      wanted.events = value;
    else if (key == "replay=" && !value.empty())
      wanted.replay = value;
    else if (key == "role=")
      wanted.role = HICACHE_TRY(parse_role(value));
    else
      return fail(ec::invalid_argument,
                  "'" + part
                    + "' is no part of an instance; expected events=ENDPOINT, "
                      "replay=ENDPOINT or role=NAME");
  }
  if (wanted.events.empty() && !wanted.replay.empty())
    return fail(ec::invalid_argument,
                "'" + text + "' has a replay without events; expected events=ENDPOINT, too");
  return wanted;
}

// -- leases -----------------------------------------------------------------------------

instance_lease::~instance_lease() {
  if (table_ != nullptr && !has_ended_)
    table_->ended(*this, request_outcome::abandoned, {});
}

void instance_lease::started() {
  table_->started(*this);
}

void instance_lease::ended(request_outcome outcome, time_point now) {
  HICACHE_CHECK(!has_ended_);
  table_->ended(*this, outcome, now);
}

instance_table::instance* instance_table::at(instance_slot slot, uint64_t number) {
  auto& found = instances_.at(slot);
  return found && found->number == number ? &*found : nullptr;
}

void instance_table::started(instance_lease& lease) {
  const auto guard = std::lock_guard{mutex_};
  if (const auto slot = std::exchange(lease.computing_, std::nullopt))
    if (auto* const found = at(*slot, lease.computing_number_))
      found->waiting_tokens -= lease.computed_tokens_;
}

void instance_table::ended(instance_lease& lease, request_outcome outcome, time_point now) {
  started(lease);
  const auto guard = std::lock_guard{mutex_};
  lease.has_ended_ = true;
  if (auto* const found = at(lease.choice_.target, lease.target_number_)) {
    --found->running;
    ++found->outcomes.at(static_cast<size_t>(outcome));
    // A refusal comes from an instance that is stopping, or full: it is no sign of health.
    if (outcome == request_outcome::answered)
      found->breaker.succeeded(store_call::get, lease.pass_, now);
    else if (outcome == request_outcome::failed)
      found->breaker.failed(store_call::get, lease.pass_, breaker_cause::failing, now);
    else if (outcome == request_outcome::late)
      found->breaker.failed(store_call::get, lease.pass_, breaker_cause::late, now);
  }
  if (--running_ == 0)
    idle_.notify_all();
}

// -- instances --------------------------------------------------------------------------

std::optional<instance_slot> instance_table::find(const std::string& address) const {
  for (auto slot = instance_slot{0}; slot < router_instances; ++slot)
    if (instances_.at(slot) && instances_.at(slot)->wanted.address == address)
      return slot;
  return std::nullopt;
}

result<instance_slot> instance_table::add(const instance_options& wanted) {
  const auto guard = std::lock_guard{mutex_};
  if (find(wanted.address))
    return fail(ec::invalid_argument,
                wanted.address + " is an instance already; expected another address");
  const auto place = std::ranges::find_if(instances_, [](const auto& each) { return !each; });
  if (place == instances_.end())
    return fail(ec::limit_reached, wanted.address + " is one instance too many; expected "
                                     + std::to_string(router_instances) + " at most");
  place->emplace(++last_number_, wanted, breaker_);
  return static_cast<instance_slot>(place - instances_.begin());
}

result<instance_slot> instance_table::remove(const std::string& address) {
  const auto guard = std::lock_guard{mutex_};
  const auto slot = find(address);
  if (!slot)
    return fail(ec::unknown_id, address + " is no instance");
  index_.forget(*slot);
  instances_.at(*slot).reset();
  return *slot;
}

result<void> instance_table::set_draining(const std::string& address, bool is_draining) {
  const auto guard = std::lock_guard{mutex_};
  const auto slot = find(address);
  if (!slot)
    return fail(ec::unknown_id, address + " is no instance");
  instances_.at(*slot)->is_draining = is_draining;
  return {};
}

std::optional<store_breaker::pass> instance_table::admit_probe(instance_slot slot, time_point now) {
  const auto guard = std::lock_guard{mutex_};
  auto& found = instances_.at(slot);
  return found ? found->breaker.admit(now) : std::nullopt;
}

void instance_table::probed(instance_slot slot, store_breaker::pass pass,
                            std::optional<probe_answer> answer, time_point now) {
  const auto guard = std::lock_guard{mutex_};
  auto& found = instances_.at(slot);
  if (!found)
    return;
  if (!answer)
    return found->breaker.failed(store_call::get, pass, breaker_cause::failing, now);
  found->breaker.succeeded(store_call::get, pass, now);
  found->is_probed = true;
  found->role = found->wanted.role.value_or(answer->role.value_or(instance_role::both));
  found->models = std::move(answer->models);
}

// -- events -----------------------------------------------------------------------------

result<void> instance_table::apply_events(instance_slot slot, std::string_view message) {
  const auto guard = std::lock_guard{mutex_};
  return index_.apply(slot, message);
}

void instance_table::lose_events(instance_slot slot) {
  const auto guard = std::lock_guard{mutex_};
  index_.forget(slot);
  if (auto& found = instances_.at(slot))
    ++found->events_lost;
}

// -- requests ---------------------------------------------------------------------------

routed_prompt instance_table::name(std::vector<token_id> tokens, std::string_view salt) const {
  const auto shapes = [&] {
    const auto guard = std::lock_guard{mutex_};
    return index_.shapes();
  }();
  return name_prompt(std::move(tokens), salt, shapes);
}

std::shared_ptr<instance_lease> instance_table::choose(const routed_prompt& prompt, uint64_t tried,
                                                       time_point now) {
  const auto guard = std::lock_guard{mutex_};
  auto candidates = std::vector<route_candidate>{};
  for (auto slot = instance_slot{0}; slot < router_instances; ++slot)
    if (const auto& each = instances_.at(slot);
        each && each->takes_requests() && (tried >> slot & 1) == 0)
      candidates.push_back({slot, each->role, index_.find(slot, prompt), each->running,
                            each->waiting_tokens, each->last_chosen});
  const auto choice = choose_route(candidates, prompt.tokens.size(), weights_);
  if (!choice)
    return nullptr;
  auto lease = std::shared_ptr<instance_lease>{new instance_lease{}};
  auto& target = *instances_.at(choice->target);
  lease->choice_ = *choice;
  lease->address_ = target.wanted.address;
  lease->target_number_ = target.number;
  // Closed, as a candidate's is.
  lease->pass_ = *target.breaker.admit(now);
  for (const auto slot : choice->prefill)
    lease->prefill_.push_back(instances_.at(slot)->wanted.address);
  const auto computing = choice->prefill.empty() ? choice->target : choice->prefill.front();
  const auto chosen
    = std::ranges::find(candidates, computing, [](const auto& each) { return each.slot; });
  const auto tokens = uint64_t{prompt.tokens.size()};
  const auto cached = std::min(tokens, chosen->cached.total());
  lease->computing_ = computing;
  lease->computing_number_ = instances_.at(computing)->number;
  lease->computed_tokens_ = tokens - cached;
  instances_.at(computing)->waiting_tokens += lease->computed_tokens_;
  instances_.at(computing)->last_chosen = ++choices_;
  target.last_chosen = choices_;
  target.prompt_tokens += tokens;
  target.expected_tokens += cached;
  ++target.running;
  ++running_;
  lease->table_ = this;
  return lease;
}

uint64_t instance_table::running() const {
  const auto guard = std::lock_guard{mutex_};
  return running_;
}

bool instance_table::wait_until_idle(duration time) {
  auto lock = std::unique_lock{mutex_};
  return idle_.wait_for(lock, time, [this] { return running_ == 0; });
}

bool instance_table::is_ready() const {
  const auto guard = std::lock_guard{mutex_};
  return std::ranges::any_of(instances_,
                             [](const auto& each) { return each && each->takes_requests(); });
}

std::string instance_table::models() const {
  const auto guard = std::lock_guard{mutex_};
  const auto found = std::ranges::find_if(
    instances_, [](const auto& each) { return each && each->takes_requests(); });
  return found == instances_.end() ? "" : (*found)->models;
}

std::vector<instance_status> instance_table::status() const {
  const auto guard = std::lock_guard{mutex_};
  auto all = std::vector<instance_status>{};
  for (auto slot = instance_slot{0}; slot < router_instances; ++slot)
    if (const auto& each = instances_.at(slot))
      all.push_back({*each, each->wanted.address, each->wanted.events, each->breaker.state(),
                     index_.pages(slot)});
  return all;
}

} // namespace hicache
