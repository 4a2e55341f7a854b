#include "cache/oplog/op_script.hpp"

#include "base/overloaded.hpp"
#include "base/try.hpp"
#include "cache/oplog/op_json.hpp"
#include "cache/oplog/op_log.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>
#include <variant>

namespace hicache {

namespace {

using op_json::json;
using op_json::object_reader;

/// Keeps its keys in insertion order, that of the documentation.
using answer = nlohmann::ordered_json;

/// Maximum pages per tier: more make no difference to behaviour.
constexpr uint64_t tier_pages_max = uint64_t{1} << 24;

/// The request that an operation of the script opens and closes.
constexpr request_id the_request = 1;

/// The accepted range of seconds keeps nanoseconds within 63 bits.
result<std::chrono::nanoseconds> to_time(double seconds, const char* key) {
  if (!(seconds >= 0 && seconds <= 1e9))
    return fail(ec::invalid_argument,
                std::string{"key '"} + key + "' is not a time from 0 to 1e9 seconds");
  return std::chrono::nanoseconds{std::llround(seconds * 1e9)};
}

struct prefix {
  cache_namespace ns;
  token_buffer tokens;
};

prefix read_prefix(object_reader& reader) {
  auto read = prefix{};
  reader.need("tokens", read.tokens);
  reader.may("extra_key", read.ns.extra_key);
  reader.may("salt", read.ns.salt);
  return read;
}

// -- answers ------------------------------------------------------------------

answer ids_of(const std::vector<page_key>& keys) {
  auto ids = answer::array();
  for (const auto& key : keys)
    ids.push_back(event_id(key));
  return ids;
}

answer show_node(const node_view& node) {
  auto tiers = answer::array();
  if (node.in_l1)
    tiers.push_back("device");
  if (node.in_l2)
    tiers.push_back("host");
  if (node.in_storage)
    tiers.push_back("storage");
  auto shown = answer{{"node", node.id}};
  if (node.parent == 0) {
    shown["extra_key"] = node.ns.extra_key;
    shown["salt"] = node.ns.salt;
  }
  shown["tokens"] = node.tokens;
  shown["tiers"] = tiers;
  shown["locks"] = node.l1_locks;
  shown["host_locks"] = node.l2_locks;
  shown["pins"] = node.pins;
  shown["hits"] = node.use.hits;
  shown["priority"] = node.use.priority;
  shown["children"] = answer::array();
  return shown;
}

answer show_event(const cache_event& event) {
  const auto medium = [](cache_medium x) { return x == cache_medium::l1 ? "device" : "host"; };
  return std::visit(overloaded{
                      [&](const pages_stored& x) {
                        return answer{{"event", "stored"},
                                      {"medium", medium(x.medium)},
                                      {"extra_key", x.ns.extra_key},
                                      {"salt", x.ns.salt},
                                      {"parent", x.parent ? answer(event_id(*x.parent)) : answer()},
                                      {"pages", ids_of(x.keys)},
                                      {"tokens", x.tokens}};
                      },
                      [&](const pages_removed& x) {
                        return answer{{"event", "removed"},
                                      {"medium", medium(x.medium)},
                                      {"pages", ids_of(x.keys)}};
                      },
                      [](const cache_cleared&) {
                        return answer{{"event", "cleared"}};
                      },
                    },
                    event);
}

/// Nodes as trees. @pre parents come before their children
answer show_nodes(const std::vector<node_view>& nodes) {
  auto shown = std::map<node_id, answer>{};
  auto roots = answer::array();
  for (const auto& node : nodes)
    shown[node.id] = show_node(node);
  // Parents come before children, so in reverse order each node is complete when its parent takes
  // it. Children are collected in reverse and turned round then.
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    auto& complete = shown.at(node->id);
    std::reverse(complete["children"].begin(), complete["children"].end());
    auto& siblings = node->parent == 0 ? roots : shown.at(node->parent)["children"];
    siblings.push_back(std::move(complete));
  }
  std::reverse(roots.begin(), roots.end());
  return answer{{"nodes", std::move(roots)}};
}

answer show_locks(const lock_result& locks) {
  return {{"evictable", locks.evictable_tokens}, {"protected", locks.protected_tokens}};
}

} // namespace

struct op_script::impl {
  using outcome = result<answer>;
  using handler = outcome (impl::*)(object_reader& reader);

  // -- one line ---------------------------------------------------------------

  static handler find(std::string_view op) {
    static const auto handlers = std::map<std::string_view, handler>{
      {"config", &impl::config},  {"match", &impl::match},         {"insert", &impl::insert},
      {"evict", &impl::evict_l1}, {"evict_host", &impl::evict_l2}, {"lock", &impl::lock},
      {"unlock", &impl::unlock},  {"backup", &impl::backup},       {"load_back", &impl::load_back},
      {"pin", &impl::pin},        {"unpin", &impl::unpin},         {"tick", &impl::tick},
      {"stats", &impl::stats},    {"tree", &impl::tree},           {"events", &impl::events},
      {"digest", &impl::digest},  {"reset", &impl::reset}};
    const auto i = handlers.find(op);
    return i == handlers.end() ? nullptr : i->second;
  }

  outcome perform(const json& object) {
    auto reader = object_reader{object};
    auto op = std::string{};
    reader.need("op", op);
    reader.ignore("case");
    reader.ignore("expect");
    const auto handle = find(op);
    if (handle == nullptr) {
      if (!object.contains("op"))
        return fail(ec::invalid_argument, "key 'op' is missing");
      return fail(ec::invalid_argument, "there is no op '" + op + "'");
    }
    if (!cache && handle != &impl::config)
      return fail(ec::invalid_argument, "the first op is 'config'");
    return (this->*handle)(reader);
  }

  // -- copies -----------------------------------------------------------------

  /// @returns whether a copy began.
  bool take_effects() {
    auto any = false;
    for (const auto& effect : cache->take_effects()) {
      if (const auto* write = std::get_if<write_command>(&effect)) {
        facts.writes_done = write->id;
        written_tokens += tokens_of(write->l2_pages->size());
        any = true;
      } else if (const auto* load = std::get_if<load_command>(&effect)) {
        facts.loads_done = load->id;
        loaded_tokens += tokens_of(load->l2_pages->size());
        any = true;
      }
    }
    return any;
  }

  /// Lets all copies finish. @returns whether there were any.
  bool settle() {
    auto any = false;
    while (take_effects() || cache->in_flight()) {
      any = true;
      cache->step(facts, {});
    }
    return any;
  }

  /// Does so after an operation.
  template <class Answer>
  result<Answer> settled(result<Answer> of) {
    settle();
    return of;
  }

  /// Retries until there is room: under write_back pages may first have to be written to L2, and
  /// each round that begins a copy frees some.
  template <class Call>
  auto with_room(Call call) {
    auto answered = call();
    while (!answered && answered.error().code == ec::out_of_device_pages && settle())
      answered = call();
    return answered;
  }

  // -- the cache --------------------------------------------------------------

  outcome config(object_reader& reader) {
    auto wanted = tree_options{};
    auto l1_tokens = uint64_t{};
    auto l2_tokens = uint64_t{};
    auto budget_tokens = uint64_t{};
    reader.may("page_size", wanted.page_size, 1u);
    reader.may("eviction", wanted.eviction, lru_policy());
    reader.may("write_policy", wanted.write);
    reader.may("device_tokens", l1_tokens, uint64_t{65536});
    reader.may("host_tokens", l2_tokens, uint64_t{131072});
    reader.may("bigram", wanted.bigram);
    reader.may("events", wanted.events);
    reader.may("share_prefixes", wanted.share_prefixes, true);
    reader.may("pin_budget_tokens", budget_tokens, UINT64_MAX);
    HICACHE_TRY(reader.finish());
    const auto page_size = uint64_t{wanted.page_size};
    if (!std::has_single_bit(page_size) || page_size > 4096)
      return fail(ec::invalid_argument, "key 'page_size' is not a power of two from 1 to 4096");
    const auto pages_max = std::to_string(tier_pages_max);
    if (l1_tokens % page_size != 0 || l1_tokens == 0 || l1_tokens / page_size > tier_pages_max)
      return fail(ec::invalid_argument,
                  "key 'device_tokens' is not a multiple of page_size, from 1 to " + pages_max
                    + " pages");
    if (l2_tokens % page_size != 0 || l2_tokens / page_size > tier_pages_max)
      return fail(ec::invalid_argument,
                  "key 'host_tokens' is not a multiple of page_size, from 0 to " + pages_max
                    + " pages");
    wanted.l1_pages = static_cast<uint32_t>(l1_tokens / page_size);
    wanted.l2_pages = static_cast<uint32_t>(l2_tokens / page_size);
    wanted.pin_budget_pages = budget_tokens == UINT64_MAX
                                ? std::max(wanted.l1_pages, wanted.l2_pages) / 4
                                : budget_tokens / page_size;
    options = wanted;
    begin();
    return answer::object();
  }

  /// Creates a new cache.
  void begin() {
    cache = std::make_unique<prefix_cache>(options);
    facts = {};
    written_tokens = 0;
    loaded_tokens = 0;
    take_effects();
  }

  outcome reset(object_reader& reader) {
    HICACHE_TRY(reader.finish());
    begin();
    return answer::object();
  }

  outcome tick(object_reader& reader) {
    auto seconds = double{};
    reader.need("seconds", seconds);
    HICACHE_TRY(reader.finish());
    const auto time = HICACHE_TRY(to_time(seconds, "seconds"));
    if (INT64_MAX - facts.now_ns < time.count())
      return fail(ec::limit_reached, "the clock of a script ends after 292 years");
    facts.now_ns += time.count();
    cache->step(facts, {});
    settle();
    return answer::object();
  }

  // -- prefixes ---------------------------------------------------------------

  result<match_result> peek(const cache_namespace& ns, const token_buffer& tokens) {
    auto matched = cache->match({the_request, ns, tokens, tokens->size(), {}});
    if (matched)
      HICACHE_TRY(cache->release(the_request));
    return matched;
  }

  outcome match(object_reader& reader) {
    const auto wanted = read_prefix(reader);
    HICACHE_TRY(reader.finish());
    const auto matched = HICACHE_TRY(settled(peek(wanted.ns, wanted.tokens)));
    return answer{
      {"device", matched.l1_tokens}, {"host", matched.l2_tokens}, {"node", matched.node}};
  }

  /// Partial pages are not cached, so a script needs no room for them. Bigrams overlap: the last
  /// pair of a page extends one token beyond it.
  token_buffer whole_pages_of(const token_buffer& tokens) const {
    const auto overlap = options.bigram ? size_t{1} : size_t{0};
    const auto units = tokens->size() - std::min(tokens->size(), overlap);
    const auto whole = units / options.page_size * options.page_size;
    const auto count = static_cast<ptrdiff_t>(whole == 0 ? 0 : whole + overlap);
    return std::make_shared<const std::vector<token_id>>(tokens->begin(), tokens->begin() + count);
  }

  outcome insert(object_reader& reader) {
    auto request = insert_request{};
    const auto wanted = read_prefix(reader);
    reader.may("priority", request.priority);
    HICACHE_TRY(reader.finish());
    request.request = the_request;
    request.tokens = whole_pages_of(wanted.tokens);
    const auto computed = request.tokens->size();
    const auto matched = HICACHE_TRY(
      cache->match({the_request, wanted.ns, wanted.tokens, wanted.tokens->size(), {}}));
    const auto inserted = with_room([&] {
                            return cache->allocate({the_request, computed});
                          }).and_then([&](const auto&) { return cache->insert(request); });
    const auto released = settled(cache->release(the_request));
    const auto end = HICACHE_TRY(inserted);
    HICACHE_TRY(released);
    return answer{{"prefix", matched.l1_tokens + matched.l2_tokens}, {"node", end.node}};
  }

  outcome pin(object_reader& reader) {
    auto ttl = double{};
    const auto wanted = read_prefix(reader);
    reader.need("ttl", ttl);
    HICACHE_TRY(reader.finish());
    const auto time = HICACHE_TRY(to_time(ttl, "ttl"));
    const auto pinned = HICACHE_TRY(settled(cache->pin({wanted.ns, wanted.tokens, time})));
    return answer{{"pinned", pinned.tokens}};
  }

  outcome unpin(object_reader& reader) {
    const auto wanted = read_prefix(reader);
    HICACHE_TRY(reader.finish());
    const auto left = HICACHE_TRY(settled(cache->unpin({wanted.ns, wanted.tokens})));
    return answer{{"pinned", left.tokens}};
  }

  // -- room -------------------------------------------------------------------

  uint64_t tokens_of(uint64_t pages) const { return pages * options.page_size; }

  uint64_t free_tokens(cache_tier tier) const {
    const auto now = cache->stats();
    return tokens_of(tier == cache_tier::l1 ? now.l1_free : now.l2_free);
  }

  outcome evict(object_reader& reader, cache_tier tier) {
    auto wanted = uint64_t{};
    reader.need("tokens", wanted);
    HICACHE_TRY(reader.finish());
    // Under write_back, pages are written first and freed by the step; pages whose write found no
    // room are not. So this counts the pages that are free in the end.
    const auto before = free_tokens(tier);
    auto freed = uint64_t{0};
    for (auto goes_on = true; goes_on && freed < wanted;) {
      const auto evicted = HICACHE_TRY(settled(cache->evict({tier, wanted - freed})));
      const auto now_freed = free_tokens(tier) - before;
      goes_on = evicted.writing_tokens > 0 && now_freed > freed;
      freed = now_freed;
    }
    return answer{{"evicted", freed}};
  }

  outcome evict_l1(object_reader& reader) { return evict(reader, cache_tier::l1); }

  outcome evict_l2(object_reader& reader) { return evict(reader, cache_tier::l2); }

  // -- nodes ------------------------------------------------------------------

  /// Reads `node`, or finds the node at the end of the cached prefix of `tokens`.
  result<node_id> read_node(object_reader& reader) {
    auto node = node_id{};
    auto wanted = prefix{};
    reader.may("node", node);
    reader.may("tokens", wanted.tokens);
    reader.may("extra_key", wanted.ns.extra_key);
    reader.may("salt", wanted.ns.salt);
    if ((node == 0) == (wanted.tokens == nullptr))
      reader.complain("expected either key 'node' or key 'tokens'");
    HICACHE_TRY(reader.finish());
    if (!wanted.tokens)
      return node;
    return peek(wanted.ns, wanted.tokens).map([](const match_result& x) { return x.node; });
  }

  outcome lock(object_reader& reader) {
    return read_node(reader)
      .and_then([this](node_id node) { return cache->lock(node); })
      .map(show_locks);
  }

  outcome unlock(object_reader& reader) {
    return read_node(reader)
      .and_then([this](node_id node) { return cache->unlock(node); })
      .map(show_locks);
  }

  outcome backup(object_reader& reader) {
    const auto written = HICACHE_TRY(
      settled(read_node(reader).and_then([this](node_id node) { return cache->backup(node); })));
    return answer{{"written", written.written_tokens}};
  }

  outcome load_back(object_reader& reader) {
    auto request = load_node_request{};
    reader.may("quota", request.quota_tokens, UINT64_MAX);
    const auto loaded = HICACHE_TRY(settled(read_node(reader).and_then([&](node_id node) {
      request.node = node;
      return with_room([&] { return cache->load_node(request); });
    })));
    return answer{{"loaded", loaded.loading_tokens}};
  }

  // -- looking ----------------------------------------------------------------

  outcome stats(object_reader& reader) {
    HICACHE_TRY(reader.finish());
    const auto now = cache->stats();
    return answer{{"evictable", tokens_of(now.l1_evictable)},
                  {"protected", tokens_of(now.l1_protected)},
                  {"device_used", tokens_of(options.l1_pages - now.l1_free)},
                  {"host_used", tokens_of(now.l2_used)},
                  {"nodes", now.nodes},
                  {"device_free", tokens_of(now.l1_free)},
                  {"host_free", tokens_of(now.l2_free)},
                  {"pinned", tokens_of(now.pinned)},
                  {"written", written_tokens},
                  {"loaded", loaded_tokens}};
  }

  outcome tree(object_reader& reader) {
    HICACHE_TRY(reader.finish());
    return show_nodes(cache->nodes());
  }

  outcome events(object_reader& reader) {
    HICACHE_TRY(reader.finish());
    auto list = answer::array();
    for (const auto& event : name_events(cache->take_changes()))
      list.push_back(show_event(event));
    return answer{{"events", std::move(list)}};
  }

  outcome digest(object_reader& reader) {
    HICACHE_TRY(reader.finish());
    return answer{{"digest", digest_to_text(cache->digest())}};
  }

  tree_options options;
  std::unique_ptr<prefix_cache> cache;
  step_facts facts;
  uint64_t written_tokens = 0;
  uint64_t loaded_tokens = 0;
};

op_script::op_script() : impl_(std::make_unique<impl>()) {}

op_script::~op_script() = default;

const prefix_cache* op_script::cache() const noexcept {
  return impl_->cache.get();
}

result<std::string> op_script::run(std::string_view line) {
  const auto object = HICACHE_TRY(op_json::parse_object(line));
  auto outcome = impl_->perform(object);
  if (!outcome)
    outcome = answer{{"error", to_string(outcome.error().code)},
                     {"message", outcome.error().detail.empty() ? sentence(outcome.error().code)
                                                                : outcome.error().detail}};
  return outcome->dump(-1, ' ', false, answer::error_handler_t::replace);
}

} // namespace hicache
