#include "cache/oplog/op_log.hpp"

#include "base/limits.hpp"
#include "base/numbers.hpp"
#include "base/overloaded.hpp"
#include "base/try.hpp"
#include "cache/hash/page_names.hpp"
#include "cache/oplog/op_json.hpp"

#include <array>
#include <bit>
#include <concepts>
#include <type_traits>
#include <utility>

namespace hicache {

namespace {

using op_json::object_reader;
using op_json::object_writer;

/// True if T, without const, is one of these.
template <class T, class... Any>
concept is = (std::same_as<std::remove_const_t<T>, Any> || ...);

/// The names of a variant's alternatives in the log; that of a variant is not used.
template <class Variant>
constexpr auto op_names = nullptr;

template <>
constexpr auto op_names<tree_operation> = std::to_array<std::string_view>(
  {"match", "prefetch", "schedule", "load_back", "allocate", "insert", "release", "evict", "pin",
   "unpin", "open_session", "close_session", "lock", "unlock", "backup", "load_node", "clear"});

template <>
constexpr auto op_names<op_log_event> = std::to_array<std::string_view>({"options", "", "step",
                                                                         "change_storage",
                                                                         "stop_serving"});

static_assert(op_names<tree_operation>.size() == std::variant_size_v<tree_operation>);
static_assert(op_names<op_log_event>.size() == std::variant_size_v<op_log_event>);

// `fields` names each key of an entry once, for reader and writer. The writer's `x` is const.

template <class Namespace>
void namespace_fields(auto& f, Namespace& ns) {
  f.may("extra_key", ns.extra_key);
  f.may("salt", ns.salt);
}

void prefetch_fields(auto& f, auto& x) {
  constexpr auto usual = prefetch_settings{};
  f.need("prefetch_policy", x.policy);
  f.need("prefetch_threshold_tokens", x.threshold_tokens);
  f.may("prefetch_timeout_base_ns", x.timeout_base, usual.timeout_base);
  f.may("prefetch_timeout_per_ki_token_ns", x.timeout_per_ki_token, usual.timeout_per_ki_token);
  f.may("prefetch_timeout_max_ns", x.timeout_max, usual.timeout_max);
}

void fields(auto& f, is<tree_options> auto& x) {
  f.need("page_size", x.page_size);
  f.need("device_pages", x.l1_pages);
  f.need("host_pages", x.l2_pages);
  f.may("prefetch_reserve_pages", x.prefetch_reserve_pages);
  f.may("layers", x.layers, 1u);
  f.need("write_policy", x.write);
  prefetch_fields(f, x.prefetch);
  f.need("load_back_threshold_tokens", x.load_back_threshold_tokens);
  f.may("storage_attached", x.storage_attached);
  f.may("storage_backend", x.storage_backend);
  f.may("storage_lends_host", x.storage_exports_l2);
  f.may("backup_limit_pages", x.backup_limit_pages, UINT64_MAX);
  f.may("device_low_pages", x.l1_room.low_pages);
  f.may("device_high_pages", x.l1_room.high_pages);
  f.need("eviction", x.eviction);
  f.may("page_order", x.order);
  f.may("bigram", x.bigram);
  f.may("pin_budget_pages", x.pin_budget_pages);
  f.may("pin_refresh", x.pin_refresh);
  f.may("events", x.events);
  f.may("join_nodes", x.join_nodes);
  f.may("share_prefixes", x.share_prefixes, true);
}

void fields(auto& f, is<match_request> auto& x) {
  f.need("request", x.request);
  namespace_fields(f, x.ns);
  f.need("tokens", x.tokens);
  f.need("limit", x.limit);
  f.may("session", x.session.session);
  f.may("generation", x.session.generation);
}

void fields(auto& f, is<prefetch_request, schedule_request, release_request> auto& x) {
  f.need("request", x.request);
}

void fields(auto& f, is<load_request> auto& x) {
  f.need("request", x.request);
  f.may("quota", x.quota_tokens, UINT64_MAX);
}

void fields(auto& f, is<allocate_request> auto& x) {
  f.need("request", x.request);
  f.need("count", x.tokens);
}

void fields(auto& f, is<insert_request> auto& x) {
  f.need("request", x.request);
  f.need("tokens", x.tokens);
  f.may("priority", x.priority);
  f.may("chunked", x.chunked);
  f.may("retain_ns", x.retain);
}

void fields(auto& f, is<evict_request> auto& x) {
  f.need("tier", x.tier);
  f.need("count", x.tokens);
}

void fields(auto& f, is<pin_request> auto& x) {
  namespace_fields(f, x.ns);
  f.need("tokens", x.tokens);
  f.need("ttl_ns", x.ttl);
}

void fields(auto& f, is<unpin_request> auto& x) {
  namespace_fields(f, x.ns);
  f.need("tokens", x.tokens);
}

void fields(auto& f, is<open_session_request> auto& x) {
  f.need("session", x.session);
  f.may("streaming", x.streaming);
}

void fields(auto& f, is<close_session_request> auto& x) {
  f.need("session", x.session.session);
  f.need("generation", x.session.generation);
}

void fields(auto& f, is<lock_request, unlock_request, write_request> auto& x) {
  f.need("node", x.node);
}

void fields(auto& f, is<load_node_request> auto& x) {
  f.need("node", x.node);
  f.may("quota", x.quota_tokens, UINT64_MAX);
}

void fields(auto& f, is<applied_step> auto& x) {
  f.need("writes_done", x.facts.writes_done);
  f.need("loads_done", x.facts.loads_done);
  f.may("write_failed", x.facts.write_failed);
  f.may("load_failed", x.facts.load_failed);
  f.need("now_ns", x.facts.now_ns);
  f.may("backups", x.facts.backups);
  f.may("fetches", x.facts.fetches);
  f.may("next_fetch", x.facts.next_fetch, step_facts::no_fetch);
  f.may("loss_age_ns", x.facts.loss_age_ns, step_facts::no_loss);
  f.may("arrived", x.arrived);
}

void fields(auto& f, is<storage_change> auto& x) {
  f.need("what", x.what);
  f.may("backend", x.backend);
  prefetch_fields(f, x.prefetch);
  f.may("lends_host", x.exports_l2);
}

void fields(auto&, is<clear_request, serving_stopped> auto&) {}

// -- writing ------------------------------------------------------------------

template <class Variant>
void write_event(object_writer& writer, const Variant& event) {
  const auto write = [&](const auto& x) {
    if constexpr (is<decltype(x), const tree_operation&>) {
      write_event(writer, x);
    } else {
      writer.need("op", std::string{op_names<Variant>[event.index()]});
      fields(writer, x);
    }
  };
  std::visit(write, event);
}

// -- reading ------------------------------------------------------------------

/// Reads the alternative of `Variant` that is called `op`. @returns false if there is none.
template <class Variant, size_t I = 0>
bool read_event(std::string_view op, object_reader& reader, op_log_event& event) {
  if constexpr (I == std::variant_size_v<Variant>) {
    return false;
  } else {
    using alternative = std::variant_alternative_t<I, Variant>;
    if constexpr (std::is_same_v<alternative, tree_operation>) {
      if (read_event<tree_operation>(op, reader, event))
        return true;
    } else if (op == op_names<Variant>[I]) {
      auto value = alternative{};
      fields(reader, value);
      if constexpr (std::is_same_v<Variant, tree_operation>)
        event = tree_operation{std::move(value)};
      else
        event = std::move(value);
      return true;
    }
    return read_event<Variant, I + 1>(op, reader, event);
  }
}

result<void> check(const tree_options& options) {
  const auto wrong = [](const char* what) { return fail(ec::invalid_argument, what); };
  if (!std::has_single_bit(options.page_size) || options.page_size > 4096)
    return wrong("page_size is not a power of two from 1 to 4096");
  if (options.l1_pages == 0 || options.l1_pages >= limits::pool_pages)
    return wrong("device_pages is not a size of a pool");
  if (options.l2_pages >= limits::pool_pages)
    return wrong("host_pages is not a size of a pool");
  if (options.prefetch_reserve_pages > options.l2_pages)
    return wrong("prefetch_reserve_pages is more than host_pages");
  if (options.layers == 0)
    return wrong("layers is 0");
  if (options.l1_room.low_pages > options.l1_room.high_pages)
    return wrong("the low watermark is above the high one");
  return {};
}

error at_line(uint64_t line, const error& err) {
  return {err.code, "line " + std::to_string(line) + ": " + err.detail};
}

} // namespace

std::string to_line(const op_log_entry& entry) {
  auto writer = object_writer{};
  write_event(writer, entry.event);
  if (entry.digest)
    writer.need("digest", digest_to_text(*entry.digest));
  return writer.finish();
}

result<op_log_entry> parse_op_log_entry(std::string_view line) {
  const auto object = HICACHE_TRY(op_json::parse_object(line));
  auto reader = object_reader{object};
  auto op = std::string{};
  auto digest = std::string{};
  reader.need("op", op);
  reader.may("digest", digest);
  auto entry = op_log_entry{};
  if (!op.empty() && !read_event<op_log_event>(op, reader, entry.event))
    return fail(ec::invalid_argument, "there is no op '" + op + "'");
  HICACHE_TRY(reader.finish());
  if (digest.size() == 16)
    entry.digest = parse_number<uint64_t>(digest, 16);
  if (!digest.empty() && !entry.digest)
    return fail(ec::invalid_argument, "key 'digest' does not hold sixteen hexadecimal digits");
  if (const auto* options = std::get_if<tree_options>(&entry.event))
    HICACHE_TRY(check(*options));
  return entry;
}

bool agree(const op_log_entry& a, const op_log_entry& b) {
  if (a.digest && b.digest && *a.digest != *b.digest)
    return false;
  const auto common = [](const op_log_entry& entry) {
    auto copy = op_log_entry{entry.event, {}};
    if (auto* step = std::get_if<applied_step>(&copy.event))
      step->arrived.clear();
    return to_line(copy);
  };
  return common(a) == common(b);
}

std::string digest_to_text(uint64_t digest) {
  return absl::StrCat(absl::Hex(digest, absl::kZeroPad16));
}

// -- playing --------------------------------------------------------------------

result<uint64_t> op_log_player::play(const op_log_entry& entry) {
  ++line_;
  const auto is_options = std::holds_alternative<tree_options>(entry.event);
  if (is_options != (line_ == 1))
    return tl::unexpected{
      at_line(line_, {ec::invalid_argument, is_options ? "options after the first line"
                                                       : "the first line of a log holds options"})};
  if (const auto* step = std::get_if<applied_step>(&entry.event))
    HICACHE_TRY(check(*step).map_error([this](const error& why) { return at_line(line_, why); }));
  std::visit(overloaded{
               [this](const tree_options& x) { cache_ = std::make_unique<prefix_cache>(x); },
               [this](const tree_operation& x) { static_cast<void>(apply(*cache_, x)); },
               [this](const applied_step& x) { perform(x); },
               [this](const storage_change& x) { cache_->change_storage(x); },
               [this](const serving_stopped&) { cache_->stop_serving(); },
             },
             entry.event);
  take_effects();
  const auto digest = cache_->digest();
  if (entry.digest && *entry.digest != digest)
    return tl::unexpected{
      at_line(line_, {ec::ranks_diverged, "the digest is " + digest_to_text(digest)
                                            + ", recorded was " + digest_to_text(*entry.digest)})};
  return digest;
}

void op_log_player::perform(const applied_step& step) {
  const auto backing_up = cache_->backing_up();
  for (auto i = size_t{0}; i < backing_up.size(); ++i)
    if (step.facts.backups[i] >= 0)
      backups_.erase(backing_up[i]);
  const auto fetching = cache_->fetching();
  for (auto i = size_t{0}; i < fetching.size(); ++i) {
    if (step.facts.fetches[i].arrived < 0)
      continue;
    fetches_.erase(fetching[i]);
    for (const auto page : *step.arrived[i])
      staging_.erase(page);
  }
  known_ = step.facts;
  cache_->step(step.facts, step.arrived);
}

result<void> op_log_player::check(const applied_step& step) const {
  const auto wrong = [](const char* what) {
    return fail(ec::invalid_argument, std::string{"this step cannot have happened: "} + what);
  };
  const auto possible
    = [](uint64_t before, uint64_t now, uint64_t issued) { return before <= now && now <= issued; };
  if (!possible(known_.writes_done, step.facts.writes_done, issued_.writes_done)
      || !possible(known_.loads_done, step.facts.loads_done, issued_.loads_done))
    return wrong("it finishes copies that were not begun or undoes finished ones");
  if ((step.facts.write_failed && step.facts.writes_done == known_.writes_done)
      || (step.facts.load_failed && step.facts.loads_done == known_.loads_done))
    return wrong("a copy failed, but none ended");
  const auto backing_up = cache_->backing_up();
  if (step.facts.loss_age_ns < 0)
    return wrong("what L3 evicted was last used in the future");
  if (step.facts.backups.size() != backing_up.size())
    return wrong("it does not name each backup that is open");
  for (auto i = size_t{0}; i < backing_up.size(); ++i)
    if (const auto stored = step.facts.backups[i];
        stored >= 0 && static_cast<uint64_t>(stored) > backups_.at(backing_up[i]))
      return wrong("a backup stored more pages than it has");
  const auto fetching = cache_->fetching();
  if (step.facts.fetches.size() != fetching.size() || step.arrived.size() != fetching.size())
    return wrong("it does not name each prefetch that is open");
  const auto next = step.facts.next_fetch;
  if (next != step_facts::no_fetch
      && (next < 0 || static_cast<uint64_t>(next) >= cache_->fetching_later().size()))
    return wrong("the next step would begin with a prefetch that is not open");
  auto arrived = std::set<page_index>{};
  for (auto i = size_t{0}; i < fetching.size(); ++i) {
    const auto agreed = step.facts.fetches[i].arrived;
    if (agreed < 0)
      continue;
    const auto fetch = fetches_.find(fetching[i]);
    if (!step.arrived[i] || static_cast<uint64_t>(agreed) > step.arrived[i]->size()
        || fetch == fetches_.end() || step.arrived[i]->size() > fetch->second)
      return wrong("a prefetch brought more pages than arrived or were asked for");
    for (const auto page : *step.arrived[i])
      if (staging_.count(page) == 0 || !arrived.insert(page).second)
        return wrong("a page arrived where the prefetcher has none");
  }
  return {};
}

void op_log_player::take_effects() {
  for (const auto& effect : cache_->take_effects())
    std::visit(
      overloaded{
        [&](const write_command& x) { issued_.writes_done = x.id; },
        [&](const load_command& x) { issued_.loads_done = x.id; },
        [&](const backup_command& x) { backups_[x.id] = x.names->size(); },
        [](const drop_command&) {},
        [&](const fetch_command& x) { fetches_[x.id] = x.names->size(); },
        [](const terminate_command&) {},
        [&](const staging_command& x) { staging_.insert(x.l2_pages->begin(), x.l2_pages->end()); },
        [&](const reclaim_command&) { staging_.clear(); },
      },
      effect);
  static_cast<void>(cache_->take_changes());
}

} // namespace hicache
