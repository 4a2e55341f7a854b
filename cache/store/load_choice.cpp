#include "cache/store/load_choice.hpp"

#include <algorithm>

namespace hicache {

namespace {

/// Share of the time to compute a prefix that its look-up may take for nothing.
constexpr auto lookup_share = 20;

} // namespace

void load_estimates::set_tiers(const tier_names& names) {
  if (names != names_ && !(names && names_ && *names == *names_))
    forget();
  names_ = names;
}

void load_estimates::add_lookup(uint64_t pages, duration time) {
  if (pages > 0)
    lookups_.add(static_cast<double>(pages), time);
}

void load_estimates::add_read(size_t tier, uint64_t pages, duration time) {
  if (pages > 0)
    reads_[tier].add(static_cast<double>(pages * page_bytes_), time);
}

std::optional<duration> load_estimates::read_time(size_t tier, uint64_t pages) const {
  const auto& reads = reads_[tier];
  const auto bytes = static_cast<double>(pages * page_bytes_);
  return reads.is_known() ? std::optional{reads.time_for(bytes)} : std::nullopt;
}

load_choice load_estimates::choose(uint64_t pages, const tier_list* tiers,
                                   duration page_compute) const {
  auto choice = load_choice{.compute = static_cast<int64_t>(pages) * page_compute};
  auto in_tier = std::array<uint64_t, limits::storage_tiers>{};
  auto load = duration{0};
  auto saved = duration{0};
  for (auto i = uint64_t{0}; i < pages; ++i) {
    const auto tier = tiers != nullptr ? size_t{(*tiers)[i]} : 0;
    const auto time = read_time(tier, ++in_tier[tier]);
    if (!time)
      return choice;
    load = std::max(load, *time);
    const auto saves = static_cast<int64_t>(i + 1) * page_compute - load;
    if (saves > duration{0} && saves >= saved) {
      saved = saves;
      choice.pages = i + 1;
    }
  }
  choice.load = load;
  return choice;
}

bool load_estimates::is_lookup_worth(uint64_t pages, duration page_compute) const {
  if (!lookups_.is_known() || page_compute <= duration{0})
    return false;
  const auto compute = static_cast<int64_t>(pages) * page_compute;
  const auto lookup = lookups_.time_for(static_cast<double>(pages));
  if (lookup <= compute / lookup_share)
    return true;
  for (auto tier = size_t{0}; tier < reads_.size(); ++tier)
    if (const auto time = read_time(tier, pages); time && lookup + *time < compute)
      return true;
  return false;
}

duration load_estimates::slowest(uint64_t pages) const {
  auto time = duration{0};
  for (auto tier = size_t{0}; tier < reads_.size(); ++tier)
    time = std::max(time, read_time(tier, pages).value_or(duration{0}));
  return time;
}

void read_timer::add(size_t tier, uint64_t pages, time_point now) noexcept {
  shares_[tier].pages += pages;
  shares_[tier].last = now;
}

void read_timer::report(load_estimates& to) const {
  for (auto tier = size_t{0}; tier < shares_.size(); ++tier)
    to.add_read(tier, shares_[tier].pages, shares_[tier].last - begun_);
}

} // namespace hicache
