#include "transport/local_agreement.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace hicache {

namespace {

/// What one rank brought to a reduction.
struct contribution {
  std::vector<int64_t> values;
  agreement::callback done;
};

/// One reduction that waits for ranks.
struct round {
  std::vector<std::optional<contribution>> ranks;
  uint32_t entered = 0;
};

using outcome = result<std::vector<int64_t>>;

outcome reduce(const round& finished) {
  auto minima = finished.ranks.front()->values;
  for (const auto& entry : finished.ranks) {
    if (entry->values.size() != minima.size())
      return fail(ec::configuration_mismatch, "ranks offered " + std::to_string(minima.size())
                                                + " and " + std::to_string(entry->values.size())
                                                + " values to one reduction");
    for (size_t i = 0; i < minima.size(); ++i)
      minima[i] = std::min(minima[i], entry->values[i]);
  }
  return minima;
}

tl::unexpected<error> missing_rank(uint32_t rank) {
  return fail(ec::rank_unresponsive, "rank " + std::to_string(rank) + " left the group");
}

/// The meeting point of the ranks. All functions may be called from any thread.
class local_group {
public:
  explicit local_group(uint32_t ranks) {
    for (auto& round : rounds_)
      round.ranks.resize(ranks);
  }

  uint32_t size() const noexcept { return static_cast<uint32_t>(rounds_.front().ranks.size()); }

  void enter(uint32_t rank, reduction_channel channel, contribution offered) {
    auto guard = std::unique_lock{mutex_};
    if (left_) {
      const auto gone = *left_;
      guard.unlock();
      offered.done(missing_rank(gone));
      return;
    }
    auto& round = rounds_.at(static_cast<size_t>(channel));
    HICACHE_CHECK(!round.ranks[rank]);
    round.ranks[rank] = std::move(offered);
    if (++round.entered < size())
      return;
    auto finished = take(round);
    // A callback may enter the next reduction, so no lock is held here.
    guard.unlock();
    const auto minima = reduce(finished);
    for (auto& entry : finished.ranks)
      entry->done(minima);
  }

  bool outstanding(uint32_t rank) {
    const auto guard = std::lock_guard{mutex_};
    return std::any_of(rounds_.begin(), rounds_.end(),
                       [rank](const round& x) { return x.ranks[rank].has_value(); });
  }

  void leave(uint32_t rank) {
    auto guard = std::unique_lock{mutex_};
    if (!left_)
      left_ = rank;
    auto failed = std::vector<round>{};
    for (auto& round : rounds_)
      failed.push_back(take(round));
    guard.unlock();
    for (auto& round : failed)
      for (uint32_t i = 0; i < round.ranks.size(); ++i)
        if (round.ranks[i])
          round.ranks[i]->done(i == rank ? outcome{fail(ec::stopping)}
                                         : outcome{missing_rank(rank)});
  }

private:
  /// Empties a round for its successor. Needs the lock.
  static round take(round& from) {
    auto fresh = round{};
    fresh.ranks.resize(from.ranks.size());
    return std::exchange(from, std::move(fresh));
  }

  std::mutex mutex_;
  std::array<round, reduction_channel_count> rounds_;
  /// The first rank that left.
  std::optional<uint32_t> left_;
};

class local_agreement final : public agreement {
public:
  local_agreement(std::shared_ptr<local_group> group, uint32_t rank)
    : group_(std::move(group)), rank_(rank) {}

  ~local_agreement() override { group_->leave(rank_); }

  uint32_t rank() const noexcept override { return rank_; }

  uint32_t size() const noexcept override { return group_->size(); }

  void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done) override {
    HICACHE_CHECK(done);
    group_->enter(rank_, channel, {std::move(values), std::move(done)});
  }

  bool progress() override { return group_->outstanding(rank_); }

private:
  std::shared_ptr<local_group> group_;
  uint32_t rank_;
};

} // namespace

std::vector<std::unique_ptr<agreement>> make_local_agreements(uint32_t ranks) {
  HICACHE_CHECK(ranks > 0);
  auto group = std::make_shared<local_group>(ranks);
  auto members = std::vector<std::unique_ptr<agreement>>{};
  members.reserve(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    members.push_back(std::make_unique<local_agreement>(group, rank));
  return members;
}

} // namespace hicache
