#include "actors/segment_repair.hpp"

#include "base/limits.hpp"

#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

segment_repair::segment_repair(segment_actor::pointer self, segment_repair_options options,
                               const segment_table& table, const offered_pages& offered,
                               const segment_mounts& mounts)
  : self_(self), options_(std::move(options)), table_(table), offered_(offered), mounts_(mounts),
    losses_(options_.policy) {}

void segment_repair::note(const std::vector<page_key>& keys) {
  for (const auto& key : keys)
    if (replicated(key, {}))
      losses_.note(key, options_.clock->now());
  options_.figures->unrepaired = losses_.size();
}

void segment_repair::run() {
  if (is_running_)
    return;
  const auto now = options_.clock->now();
  auto tried = losses_.take(now, limits::repair_pages);
  if (tried.empty())
    return;
  auto settings = spread_settings(mounts_.options());
  settings.bytes_per_second = options_.policy.bytes_per_second;
  for (const auto& key : tried)
    if (auto page = replicated(key, now)) // Otherwise it was removed here too.
      settings.pages.push_back(*page);
  is_running_ = true;
  self_->request(self_->spawn(spreader, std::move(settings)), caf::infinite, atom::copy_v)
    .then(
      [this, tried](const page_totals& spread) {
        options_.figures->repaired += spread.pages;
        end(tried, spread.left_out);
        spdlog::info("lost copies: {} pages have all of theirs again, {} are tried again later",
                     spread.pages, spread.left_out.size());
      },
      [this, tried](const caf::error& err) {
        end(tried, tried);
        spdlog::warn("lost copies are not made anew: {}", to_string(from_caf(err)));
      });
}

void segment_repair::end(const std::vector<page_key>& tried, const std::vector<page_key>& lacking) {
  is_running_ = false;
  losses_.settle(tried, lacking, options_.clock->now());
  options_.figures->repair_failures += lacking.size();
  options_.figures->unrepaired = losses_.size();
}

std::optional<copied_page> segment_repair::replicated(const page_key& key, time_point now) const {
  if (const auto kept = table_.describe(key))
    return kept->copies > 1 ? std::optional{copy_of(*kept, now)} : std::nullopt;
  // Exported pages always originate here.
  const auto exported = options_.copies > 1 ? offered_.find_exported(key) : std::nullopt;
  if (!exported)
    return std::nullopt;
  return copy_of({.page = *exported, .parent = {}, .pinned_until = {}, .copies = options_.copies},
                 now);
}

spreader_options spread_settings(const segment_mounts_options& member) {
  return {{member.member.member, member.member.host, true},
          member.index,
          member.reach,
          member.timeout,
          0,
          {},
          std::make_shared<spread_figures>()};
}

} // namespace hicache
