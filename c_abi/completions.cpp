#include "c_abi/completions.hpp"

#include "base/check.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <string>

namespace hicache {

completions::completions(size_t most) : most_(most) {
  HICACHE_CHECK(most > 0);
}

result<hc_ticket> completions::open() {
  const auto guard = std::lock_guard{mutex_};
  if (is_closed_)
    return fail(ec::stopping);
  if (open_.size() + done_.size() >= most_)
    return fail(ec::limit_reached, std::to_string(most_) + " calls are open, or wait for hc_poll");
  open_.insert(++last_);
  return last_;
}

void completions::add(const hc_completion& done) {
  const auto guard = std::lock_guard{mutex_};
  HICACHE_CHECK(open_.erase(done.ticket) == 1);
  if (is_closed_)
    return;
  done_.push_back(done);
  added(done_.size() == 1);
}

result<size_t> completions::take(std::span<hc_completion> room, time_point deadline) {
  auto guard = std::unique_lock{mutex_};
  HICACHE_TRY(wait(guard, deadline, [this] { return !done_.empty(); }));
  const auto count = std::min(room.size(), done_.size());
  if (count == 0)
    return count;
  std::copy_n(done_.begin(), count, room.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(count));
  if (done_.empty())
    emptied();
  return count;
}

result<hc_completion> completions::take(hc_ticket ticket, time_point deadline) {
  auto guard = std::unique_lock{mutex_};
  HICACHE_TRY(wait(guard, deadline, [this, ticket] { return !open_.contains(ticket); }));
  if (open_.contains(ticket))
    return fail(ec::deadline_exceeded);
  const auto at = std::ranges::find(done_, ticket, &hc_completion::ticket);
  if (at == done_.end())
    return fail(ec::unknown_id);
  const auto done = *at;
  done_.erase(at);
  if (done_.empty())
    emptied();
  return done;
}

bool completions::has(hc_ticket ticket) const {
  const auto guard = std::lock_guard{mutex_};
  return open_.contains(ticket)
         || std::ranges::find(done_, ticket, &hc_completion::ticket) != done_.end();
}

completions::figures completions::counts() const {
  const auto guard = std::lock_guard{mutex_};
  return {open_.size(), done_.size()};
}

} // namespace hicache
