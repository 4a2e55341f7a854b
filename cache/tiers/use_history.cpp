#include "cache/tiers/use_history.hpp"

#include <utility>

namespace hicache {

uint32_t use_history::use(const page_key& key) {
  if (const auto found = young_.find(key); found != young_.end())
    return ++found->second;
  auto uses = uint32_t{1};
  if (const auto found = old_.find(key); found != old_.end())
    uses += found->second;
  if (young_.size() >= window_) {
    old_ = std::exchange(young_, {});
    young_.reserve(window_);
  }
  young_.emplace(key, uses);
  return uses;
}

} // namespace hicache
