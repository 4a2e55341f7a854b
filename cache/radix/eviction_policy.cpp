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

eviction_rank lru(const node_use& use) noexcept {
  return {use.last_access, 0};
}

eviction_rank lfu(const node_use& use) noexcept {
  return {use.hits, use.last_access};
}

eviction_rank fifo(const node_use& use) noexcept {
  return {use.created, 0};
}

eviction_rank mru(const node_use& use) noexcept {
  return {~use.last_access, 0};
}

eviction_rank filo(const node_use& use) noexcept {
  return {~use.created, 0};
}

eviction_rank priority(const node_use& use) noexcept {
  return {ascending(use.priority), use.last_access};
}

eviction_rank slru(const node_use& use) noexcept {
  return {use.hits >= proven_hits ? uint64_t{1} : uint64_t{0}, use.last_access};
}

const std::array<eviction_policy_ptr, 7>& all_policies() {
  static const auto list
    = std::array<eviction_policy_ptr, 7>{std::make_shared<plain_policy>("lru", lru),
                                         std::make_shared<plain_policy>("lfu", lfu),
                                         std::make_shared<plain_policy>("fifo", fifo),
                                         std::make_shared<plain_policy>("mru", mru),
                                         std::make_shared<plain_policy>("filo", filo),
                                         std::make_shared<plain_policy>("priority", priority),
                                         std::make_shared<plain_policy>("slru", slru)};
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
