#include "base/check.hpp"
#include "hicache/rank_reducer.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace hicache {

namespace {

using outcome = result<std::vector<int64_t>>;

template <class T>
using per_channel = std::array<T, reduction_channel_count>;

/// One rank's values in a reduction; empty until it enters.
using contribution = std::optional<std::vector<int64_t>>;

struct round {
  std::vector<contribution> ranks;
  uint32_t entered = 0;
};

outcome reduce(const round& finished) {
  auto minima = *finished.ranks.front();
  for (const auto& values : finished.ranks) {
    if (values->size() != minima.size())
      return fail(ec::configuration_mismatch, "ranks offered " + std::to_string(minima.size())
                                                + " and " + std::to_string(values->size())
                                                + " values to one reduction");
    std::ranges::transform(minima, *values, minima.begin(), std::ranges::min);
  }
  return minima;
}

/// State shared by the ranks. Any thread may call any function.
class local_group {
public:
  explicit local_group(uint32_t ranks) : members_(ranks) {
    for (auto& round : rounds_)
      round.ranks.resize(ranks);
  }

  uint32_t size() const noexcept { return static_cast<uint32_t>(members_.size()); }

  void enter(uint32_t rank, reduction_channel channel, std::vector<int64_t> values) {
    const auto guard = std::lock_guard{mutex_};
    const auto which = static_cast<size_t>(channel);
    auto& round = rounds_.at(which);
    HICACHE_CHECK(!round.ranks[rank]);
    round.ranks[rank] = std::move(values);
    ++round.entered;
    if (left_)
      end(which, missing_rank(), rank);
    else if (round.entered == size())
      end(which, reduce(round), rank);
  }

  /// Reductions of this rank that ended since the last call.
  per_channel<std::optional<outcome>> take(uint32_t rank) {
    const auto guard = std::lock_guard{mutex_};
    return std::exchange(members_[rank].ended, {});
  }

  void on_notify(uint32_t rank, rank_reducer::notify_callback news) {
    const auto guard = std::lock_guard{mutex_};
    members_[rank].news = std::move(news);
  }

  std::string missing(reduction_channel channel) {
    const auto guard = std::lock_guard{mutex_};
    const auto& round = rounds_.at(static_cast<size_t>(channel));
    auto text = std::string{};
    for (uint32_t i = 0; i < size(); ++i)
      if (!round.ranks[i])
        text += (text.empty() ? "rank " : "; rank ") + std::to_string(i) + " has not arrived";
    return text;
  }

  void leave(uint32_t rank) {
    const auto guard = std::lock_guard{mutex_};
    members_[rank].news = nullptr;
    if (!left_)
      left_ = rank;
    for (size_t channel = 0; channel < rounds_.size(); ++channel)
      end(channel, missing_rank(), rank);
  }

private:
  struct member {
    /// Outcomes that the rank has not taken yet.
    per_channel<std::optional<outcome>> ended;
    rank_reducer::notify_callback news;
  };

  tl::unexpected<error> missing_rank() const {
    return fail(ec::rank_unresponsive, "rank " + std::to_string(*left_) + " left the group");
  }

  /// Ends a round for all that entered it, on the thread of rank `by`. The lock is held.
  void end(size_t channel, const outcome& minima, uint32_t by) {
    auto fresh = round{};
    fresh.ranks.resize(size());
    const auto finished = std::exchange(rounds_[channel], std::move(fresh));
    for (uint32_t i = 0; i < size(); ++i) {
      if (!finished.ranks[i])
        continue;
      members_[i].ended[channel] = minima;
      if (i != by && members_[i].news)
        members_[i].news();
    }
  }

  std::mutex mutex_;
  per_channel<round> rounds_;
  std::vector<member> members_;
  /// The first rank that left.
  std::optional<uint32_t> left_;
};

class local_reducer final : public rank_reducer {
public:
  local_reducer(std::shared_ptr<local_group> group, uint32_t rank)
    : group_(std::move(group)), rank_(rank) {}

  ~local_reducer() override {
    group_->leave(rank_);
    for (auto& done : waiting_)
      if (done)
        std::exchange(done, nullptr)(fail(ec::stopping));
  }

  uint32_t rank() const noexcept override { return rank_; }

  uint32_t size() const noexcept override { return group_->size(); }

  void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done) override {
    auto& waiting = waiting_.at(static_cast<size_t>(channel));
    HICACHE_CHECK(done && !waiting);
    waiting = std::move(done);
    group_->enter(rank_, channel, std::move(values));
    progress();
  }

  bool progress() override {
    auto ended = group_->take(rank_);
    // A callback may enter the next reduction of its channel, so mark the channel idle first.
    for (size_t i = 0; i < ended.size(); ++i)
      if (ended[i])
        std::exchange(waiting_[i], nullptr)(std::move(*ended[i]));
    return false;
  }

  void on_notify(notify_callback news) override { group_->on_notify(rank_, std::move(news)); }

  std::string missing(reduction_channel channel) override { return group_->missing(channel); }

private:
  std::shared_ptr<local_group> group_;
  uint32_t rank_;
  per_channel<callback> waiting_;
};

} // namespace

rank_reducer::~rank_reducer() = default;

std::vector<std::unique_ptr<rank_reducer>> make_local_reducers(uint32_t ranks) {
  HICACHE_CHECK(ranks > 0);
  auto group = std::make_shared<local_group>(ranks);
  auto members = std::vector<std::unique_ptr<rank_reducer>>{};
  members.reserve(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    members.push_back(std::make_unique<local_reducer>(group, rank));
  return members;
}

} // namespace hicache
