#include "c_abi/completions.hpp"

#include "base/check.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace hicache {

/// Must be created and destroyed with the mutex held.
class completions::waiter {
public:
  explicit waiter(completions& of) : of_(of) { ++of_.waiters_; }

  waiter(const waiter&) = delete;

  waiter& operator=(const waiter&) = delete;

  ~waiter() {
    if (--of_.waiters_ == 0 && of_.is_closed_)
      of_.changed_.notify_all();
  }

private:
  completions& of_;
};

completions::completions(size_t most) : most_(most) {
  HICACHE_CHECK(most > 0);
}

result<void> completions::start() {
  event_ = unique_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!event_)
    return fail(ec::io_failure,
                "cannot make an eventfd: " + std::generic_category().message(errno));
  return {};
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
  if (done_.size() == 1)
    eventfd_write(event_.get(), 1);
  changed_.notify_all();
}

void completions::took() {
  auto count = eventfd_t{};
  if (done_.empty())
    eventfd_read(event_.get(), &count);
}

result<size_t> completions::take(std::span<hc_completion> room, time_point deadline) {
  auto guard = std::unique_lock{mutex_};
  const auto waiting = waiter{*this};
  changed_.wait_until(guard, deadline, [this] { return is_closed_ || !done_.empty(); });
  if (is_closed_)
    return fail(ec::stopping);
  const auto count = std::min(room.size(), done_.size());
  if (count == 0)
    return count;
  std::copy_n(done_.begin(), count, room.begin());
  done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(count));
  took();
  return count;
}

result<hc_completion> completions::take(hc_ticket ticket, time_point deadline) {
  auto guard = std::unique_lock{mutex_};
  const auto waiting = waiter{*this};
  changed_.wait_until(guard, deadline,
                      [this, ticket] { return is_closed_ || !open_.contains(ticket); });
  if (is_closed_)
    return fail(ec::stopping);
  if (open_.contains(ticket))
    return fail(ec::deadline_exceeded);
  const auto at = std::ranges::find(done_, ticket, &hc_completion::ticket);
  if (at == done_.end())
    return fail(ec::unknown_id);
  const auto done = *at;
  done_.erase(at);
  took();
  return done;
}

bool completions::has(hc_ticket ticket) const {
  const auto guard = std::lock_guard{mutex_};
  return open_.contains(ticket)
         || std::ranges::find(done_, ticket, &hc_completion::ticket) != done_.end();
}

void completions::close() {
  auto guard = std::unique_lock{mutex_};
  is_closed_ = true;
  changed_.notify_all();
  changed_.wait(guard, [this] { return waiters_ == 0; });
}

completions::figures completions::counts() const {
  const auto guard = std::lock_guard{mutex_};
  return {open_.size(), done_.size()};
}

} // namespace hicache
