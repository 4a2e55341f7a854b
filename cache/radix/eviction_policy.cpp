#include "hicache/eviction_policy.hpp"

#include <strings.h>

#include <array>
#include <string>

namespace hicache {

namespace {

/// Hits from which segmented LRU promotes a node (SGLang's default).
constexpr uint64_t proven_hits = 2;

/// Maps signed numbers to unsigned ones of the same order.
constexpr uint64_t ascending(int32_t value) noexcept {
  return static_cast<uint32_t>(value) ^ (uint32_t{1} << 31);
}

using rank_function = eviction_rank (*)(const node_use&) noexcept;

/// A policy that is a function.
class plain_policy : public eviction_policy {
public:
  constexpr plain_policy(std::string_view name, rank_function function)
    : name_(name), function_(function) {}

  std::string_view name() const noexcept override { return name_; }

  eviction_rank rank(const node_use& use) const noexcept override { return function_(use); }

private:
  std::string_view name_;
  rank_function function_;
};

using use = const node_use&;
using rank = eviction_rank;

constexpr auto lru = [](use x) noexcept { return rank{x.last_access, 0}; };
constexpr auto lfu = [](use x) noexcept { return rank{x.hits, x.last_access}; };
constexpr auto fifo = [](use x) noexcept { return rank{x.created, 0}; };
constexpr auto mru = [](use x) noexcept { return rank{~x.last_access, 0}; };
constexpr auto filo = [](use x) noexcept { return rank{~x.created, 0}; };
constexpr auto priority = [](use x) noexcept { return rank{ascending(x.priority), x.last_access}; };
constexpr auto slru = [](use x) noexcept {
  return rank{x.hits >= proven_hits ? 1U : 0U, x.last_access};
};

const auto& all_policies() {
  const auto plain = [](std::string_view name, rank_function function) -> eviction_policy_ptr {
    return std::make_shared<plain_policy>(name, function);
  };
  static const auto list = std::array{
    plain("lru", lru),   plain("lfu", lfu),           plain("fifo", fifo), plain("mru", mru),
    plain("filo", filo), plain("priority", priority), plain("slru", slru)};
  return list;
}

} // namespace

eviction_policy::~eviction_policy() = default;

result<eviction_policy_ptr> make_eviction_policy(std::string_view name) {
  auto names = std::string{};
  for (const auto& policy : all_policies()) {
    const auto known = policy->name();
    if (known.size() == name.size() && strncasecmp(known.data(), name.data(), name.size()) == 0)
      return policy;
    names += names.empty() ? "" : ", ";
    names += known;
  }
  return fail(ec::invalid_argument,
              "no eviction policy is called \"" + std::string{name} + "\"; there are " + names);
}

eviction_policy_ptr lru_policy() {
  return all_policies().front();
}

} // namespace hicache
