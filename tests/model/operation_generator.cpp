#include "tests/model/operation_generator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <random>
#include <utility>

namespace hicache::test {

namespace {

constexpr auto policies = std::array{"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"};
constexpr auto page_sizes = std::array{1U, 4U, 16U, 64U};
constexpr auto l1_sizes = std::array{2U, 5U, 8U, 12U, 16U, 24U, 32U};
constexpr auto l2_sizes = std::array{0U, 2U, 5U, 8U, 16U, 32U, 48U};
constexpr auto budgets = std::array{0U, 2U, 6U, 1000U};
constexpr size_t most_open = 4;
constexpr uint64_t most_pages = 6;
constexpr session_id sessions = 2;

class generator {
public:
  /// @param random Any number; with a remainder of at most 255 it need not have more than a byte.
  generator(uint64_t seed, copy_time copies, std::function<uint64_t()> random)
    : random_(std::move(random)) {
    made_.copies = copies;
    choose_options(seed);
    while (prompts_.size() < 4) {
      prompts_.emplace_back();
      append_pages(prompts_.back(), most_pages - below(3));
    }
  }

  /// @param goes_on Asked before each action.
  sequence make(const std::function<bool(size_t)>& goes_on) {
    while (goes_on(made_.actions.size()))
      add_something();
    close_everything();
    return std::move(made_);
  }

private:
  struct request {
    request_id id = 0;
    std::vector<token_id> tokens;
    session_id session = 0;
  };

  uint64_t below(uint64_t limit) { return random_() % limit; }

  bool chance(uint64_t percent) { return below(100) < percent; }

  template <class List>
  auto& any_of(List& list) {
    return list[below(list.size())];
  }

  void choose_options(uint64_t seed) {
    auto& options = made_.options;
    options.eviction = *make_eviction_policy(policies[seed % 7]);
    options.page_size = page_sizes[seed / 7 % 4];
    options.write = static_cast<write_policy>(seed / 28 % 3);
    options.bigram = seed / 84 % 2 == 1;
    options.l1_pages = any_of(l1_sizes);
    options.l2_pages = any_of(l2_sizes);
    options.pin_budget_pages = any_of(budgets);
    options.load_back_threshold_tokens
      = chance(50) ? 1 : static_cast<uint32_t>(below(3)) * options.page_size;
    options.events = chance(10);
    options.storage_exports_l2 = chance(25);
    // The exact model knows of no joined nodes.
    options.join_nodes = made_.copies == copy_time::late;
  }

  uint64_t add(std::variant<tree_operation, step_action> what, uint64_t from = 0) {
    made_.actions.push_back({made_.actions.size() + 1, std::move(what), from});
    return made_.actions.size();
  }

  // -- tokens -----------------------------------------------------------------

  /// One of three pages; two of them differ at the last token only.
  void append_page(std::vector<token_id>& tokens) {
    const auto letter = std::min<uint64_t>(below(4), 2);
    auto page = std::vector<token_id>(made_.options.page_size);
    (letter == 2 ? page.front() : page.back()) = static_cast<token_id>(letter);
    tokens.insert(tokens.end(), page.begin(), page.end());
  }

  void append_tail(std::vector<token_id>& tokens) {
    tokens.resize(tokens.size() + below(made_.options.page_size), static_cast<token_id>(below(2)));
    if (made_.options.bigram && chance(70))
      tokens.push_back(0);
  }

  void append_pages(std::vector<token_id>& tokens, uint64_t count) {
    for (; count > 0; --count)
      append_page(tokens);
  }

  /// A beginning of one of a few prompts, and maybe something else behind it.
  std::vector<token_id> some_tokens() {
    auto tokens = any_of(prompts_);
    tokens.resize(std::min<size_t>(tokens.size(), below(most_pages + 1) * made_.options.page_size));
    if (chance(40))
      append_pages(tokens, below(3));
    append_tail(tokens);
    return tokens;
  }

  static token_buffer share(std::vector<token_id> tokens) {
    return std::make_shared<const std::vector<token_id>>(std::move(tokens));
  }

  cache_namespace some_namespace() {
    const auto which = below(8);
    return which == 0   ? cache_namespace{"a", ""}
           : which == 1 ? cache_namespace{"", "t"}
           : which == 2 ? cache_namespace{"a", "t"}
                        : cache_namespace{};
  }

  std::chrono::nanoseconds some_time() {
    return chance(3) ? std::chrono::nanoseconds::max()
                     : std::chrono::nanoseconds{static_cast<int64_t>(1 + below(6))};
  }

  // -- actions ----------------------------------------------------------------

  void add_something() {
    if (made_.copies == copy_time::late && chance(15))
      return step();
    const auto kind = below(100);
    if (kind < 18)
      open();
    else if (kind < 66)
      go_on();
    else if (kind < 74)
      add(evict_request{chance(60) ? cache_tier::l1 : cache_tier::l2,
                        1 + below(4 * made_.options.page_size)});
    else if (kind < 79)
      hold_for_a_time();
    else if (kind < 89)
      use_a_node();
    else if (kind < 92)
      open_or_close_a_session();
    else if (kind < 97)
      step();
    else if (kind < 99)
      do_something_wrong();
    else
      add(clear_request{});
  }

  void open() {
    if (open_.size() >= most_open)
      return close(below(open_.size()));
    auto next = request{++last_request_, some_tokens(), 0};
    auto asked = match_request{.request = next.id, .ns = some_namespace()};
    asked.limit = next.tokens.size() - (chance(50) && !next.tokens.empty() ? 1 : 0);
    asked.tokens = share(next.tokens);
    auto from = uint64_t{0};
    if (const auto session = below(sessions) + 1; chance(25) && session_from_[session] != 0) {
      asked.session.session = session;
      from = session_from_[session];
    }
    remember_node(add(asked, from));
    if (chance(50))
      load(next);
    open_.push_back(std::move(next));
  }

  void close(size_t which) {
    add(release_request{open_[which].id});
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(which));
  }

  /// The next turn of a request; mostly in the order in which engines do things.
  void go_on() {
    if (open_.empty())
      return open();
    const auto which = below(open_.size());
    auto& at = open_[which];
    const auto kind = below(10);
    if (kind < 2) {
      load(at);
    } else if (kind < 3) {
      add(allocate_request{at.id, at.tokens.size()});
    } else if (kind < 4) {
      // Decoding, or the next question.
      if (at.tokens.size() < most_pages * made_.options.page_size && chance(70))
        append_page(at.tokens);
      append_tail(at.tokens);
      add(allocate_request{at.id, at.tokens.size()});
      insert(at, at.tokens.size());
    } else if (kind < 5) {
      // A prefill in parts.
      const auto part = at.tokens.size() - below(at.tokens.size() / 2 + 1);
      add(allocate_request{at.id, part});
      insert(at, part);
    } else if (kind < 6) {
      insert(at, at.tokens.size());
    } else {
      add(allocate_request{at.id, at.tokens.size()});
      insert(at, at.tokens.size());
      close(which);
    }
  }

  void load(const request& at) {
    add(load_request{at.id, chance(80) ? UINT64_MAX : below(4 * made_.options.page_size)});
  }

  void insert(const request& at, uint64_t count) {
    auto asked = insert_request{.request = at.id};
    auto tokens = at.tokens;
    tokens.resize(count);
    asked.tokens = share(std::move(tokens));
    asked.chunked = count < at.tokens.size() ? chance(80) : chance(5);
    if (chance(20))
      asked.priority = static_cast<int32_t>(below(5)) - 1;
    if (chance(10))
      asked.retain = some_time();
    remember_node(add(asked));
  }

  void remember_node(uint64_t number) {
    nodes_.push_back(number);
    if (nodes_.size() > 8)
      nodes_.erase(nodes_.begin());
  }

  void hold_for_a_time() {
    if (chance(70))
      add(pin_request{some_namespace(), share(some_tokens()), some_time()});
    else
      add(unpin_request{some_namespace(), share(some_tokens())});
  }

  void use_a_node() {
    if (nodes_.empty())
      return;
    const auto from = any_of(nodes_);
    const auto kind = below(10);
    if (kind < 3) {
      add(lock_request{}, from);
      locks_.push_back(from);
    } else if (kind < 6) {
      if (locks_.empty())
        return static_cast<void>(add(unlock_request{}, from));
      const auto which = below(locks_.size());
      add(unlock_request{}, locks_[which]);
      locks_.erase(locks_.begin() + static_cast<ptrdiff_t>(which));
    } else if (kind < 8) {
      add(write_request{}, from);
    } else {
      add(load_node_request{0, chance(80) ? UINT64_MAX : below(3 * made_.options.page_size)}, from);
    }
  }

  void open_or_close_a_session() {
    const auto session = below(sessions) + 1;
    auto& from = session_from_[session];
    if (from == 0)
      from = add(open_session_request{session});
    else if (chance(40))
      add(close_session_request{{session}}, from);
    else
      add(close_session_request{{session}}, std::exchange(from, 0));
  }

  void step() {
    const auto all = chance(20);
    add(step_action{all ? UINT64_MAX : below(3), all ? UINT64_MAX : below(3),
                    static_cast<int64_t>(below(4)), chance(5), chance(5)});
  }

  /// What the cache must refuse.
  void do_something_wrong() {
    switch (below(6)) {
      case 0:
        return static_cast<void>(add(match_request{last_request_, {}, share({}), 1}));
      case 1:
        return static_cast<void>(add(allocate_request{last_request_ + 1000, 1}));
      case 2:
        return static_cast<void>(add(insert_request{last_request_ + 1000, share({1})}));
      case 3:
        return static_cast<void>(add(release_request{last_request_ + 1000}));
      case 4:
        return static_cast<void>(add(lock_request{}));
      default:
        return static_cast<void>(add(pin_request{{}, share(some_tokens()), {}}));
    }
  }

  /// Nothing may be left after this.
  void close_everything() {
    while (!open_.empty())
      close(open_.size() - 1);
    for (const auto from : locks_)
      add(unlock_request{}, from);
    add(step_action{UINT64_MAX, UINT64_MAX, 100});
    add(evict_request{cache_tier::l1, UINT64_MAX / 2});
    add(step_action{UINT64_MAX, UINT64_MAX, 0});
    add(clear_request{});
  }

  std::function<uint64_t()> random_;
  sequence made_;
  std::vector<std::vector<token_id>> prompts_;
  std::vector<request> open_;
  request_id last_request_ = 0;
  /// Actions that answered a node; those whose nodes were locked.
  std::vector<uint64_t> nodes_;
  std::vector<uint64_t> locks_;
  /// The action that opened each session; 0 if it is closed.
  std::array<uint64_t, sessions + 1> session_from_{};
};

} // namespace

sequence generate(uint64_t seed, copy_time copies, size_t actions) {
  auto maker = generator{seed, copies, std::mt19937_64{seed}};
  return maker.make([actions](size_t made) { return made < actions; });
}

sequence generate_from(std::span<const uint8_t> bytes) {
  auto at = size_t{0};
  const auto next = [&]() -> uint64_t { return at < bytes.size() ? bytes[at++] : 0; };
  const auto kind = next();
  const auto copies = next() % 2 == 0 ? copy_time::at_once : copy_time::late;
  auto maker = generator{kind, copies, next};
  return maker.make([&](size_t) { return at < bytes.size(); });
}

} // namespace hicache::test
